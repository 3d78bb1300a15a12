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

-- open_fleet(meta, nonce, tick_ms, learning_ms) -> fleet. moves the lease clock, or starts an epoch
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
local function open_fleet(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch, clock, last, learning_until, grant =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'grant'))
  local prefix = string.sub(meta, 1, -5)

  if epoch and clock and last then
    clock, last = tonumber(clock), tonumber(last)
    clock = clock + math.min(math.max(wall - last, 0), 2 * tick_ms)
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    if wall ~= last then
      redis.call('HSET', meta, 'clock', clock, 'last', wall)
    end
  else
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local top = redis.call('ZREVRANGE', prefix .. 'pool:total', 0, 0, 'WITHSCORES')[2]
    clock = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant = nonce, clock + learning_ms, 0
    redis.call(
      'HSET',
      meta,
      'schema',
      1,
      'epoch',
      epoch,
      'clock',
      clock,
      'last',
      wall,
      'grant',
      grant,
      'learning_until',
      learning_until,
      'tick_ms',
      tick_ms
    )
  end

  return {
    prefix = prefix,
    wall = wall,
    now = clock,
    epoch = epoch,
    grant = tonumber(grant) or 0,
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - clock),
    -- Without anybody in line nothing of the line need be looked at.
    waiting = redis.call('HLEN', prefix .. 'line:waiting'),
  }
end
-- named(names, values) -> list. name, value, name, value ...: what HSET and XADD take
local function named(names, values)
  local words = {}
  for name in string.gmatch(names, '%S+') do
    words[#words + 1] = name
    words[#words + 1] = values[(#words + 1) / 2]
  end
  return words
end
-- note(events, names, values) -> nothing. adds one entry to an event stream, which forgets its oldest
local function note(events, names, values)
  redis.call('XADD', events, 'MAXLEN', '~', 10000, '*', unpack(named(names, values)))
end

local meta, gateways, draining, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local holder, who = ARGV[4], ARGV[5]

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
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
