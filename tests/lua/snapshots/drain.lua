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
-- What moved is written by save_fleet, with which every script ends. `clock` and `wall_text` are `now` and
-- `wall` as text: Redis would print a number anew for each command that takes it.
local function open_fleet(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local ms = math.floor(time[2] / 1000)
  local wall = time[1] * 1000 + ms
  local epoch, clock, last, learning_until, grant =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'grant'))
  local prefix, now, before = string.sub(meta, 1, -5), tonumber(clock), tonumber(last)
  local known = epoch and now and before
  local wall_text, moved = last, not known or wall ~= before

  if not known then
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local top = redis.call('ZREVRANGE', prefix .. 'pool:total', 0, 0, 'WITHSCORES')[2]
    now = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant = nonce, now + learning_ms, 0
    redis.call('HSET', meta, 'schema', 1, 'epoch', epoch, 'grant', grant, 'tick_ms', tick_ms)
    redis.call('HSET', meta, 'learning_until', learning_until)
  elseif wall > before then
    now = now + math.min(wall - before, 2 * tick_ms)
  end
  if moved then
    wall_text = time[1] .. string.format('%03d', ms)
    clock = now == wall and wall_text or string.format('%.0f', now)
  end

  return {
    meta = meta,
    prefix = prefix,
    wall = wall,
    wall_text = wall_text,
    now = now,
    clock = clock,
    epoch = epoch,
    grant = tonumber(grant) or 0,
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - now),
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    moved = moved,
    caps = {},
  }
end
-- save_fleet(fleet) -> nothing. writes the clock and the number of the last grant, where they changed
local function save_fleet(fleet)
  if fleet.granted then
    redis.call('HSET', fleet.meta, 'clock', fleet.clock, 'last', fleet.wall_text, 'grant', fleet.granted)
  elseif fleet.moved then
    redis.call('HSET', fleet.meta, 'clock', fleet.clock, 'last', fleet.wall_text)
  end
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
