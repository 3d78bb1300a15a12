#!lua flags=allow-oom
--[[
  drain: tell one gateway to admit nothing more and to stop when its streams have ended, from any replica.

  It hears so by a message and, should that be lost, by its next tick. Idempotent. Cost: O(log N).

  KEYS
    1  meta      hash    epoch, clock, last, learning_until, grant
    2  gateways  zset    holder -> session expiry
    3  draining  set     holders that were told to drain
    4  events    stream  who told whom

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  holder       string   name~nonce of the gateway process
    5  who          string   for the event stream

  RETURNS
    DRAINING  epoch  grant  changed    0: it had been told before
    UNKNOWN   epoch  grant             no such gateway has a session
]]

-- @include read_clock
-- @include open_fleet
-- @include save_fleet
-- @include named
-- @include note

local meta, gateways, draining, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holder, who = ARGV[4], ARGV[5]

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
save_fleet(fleet)
local session = redis.call('ZSCORE', gateways, holder)
if not session or tonumber(session) <= fleet.now then
  return { 'UNKNOWN', fleet.epoch, fleet.grant }
end
local changed = redis.call('SADD', draining, holder)
if changed == 1 then
  note(events, 'kind who holder field old new', { 'drain', who, holder, 'state', 'serving', 'draining' })
end
redis.call('SPUBLISH', fleet.prefix .. 'line:wake:' .. holder, fleet.epoch .. '\n* 0 cut drain')
return { 'DRAINING', fleet.epoch, fleet.grant, changed }
