#!lua
--[[
  witness: note what an engine's own report says of its prefix cache.

  A prefix that the engine served from its cache is kept for a while, one that it had to compute is dropped,
  so evidence ends as soon as the engine contradicts it. Idempotent.
  Cost: O(P log K) for P prefixes and K <= `most` kept.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant
    2  evidence  zset     prefix hash -> expiry on the lease clock, ms; one set per engine

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  keep_ms      integer  how long evidence lasts
    5  most         integer  how many prefixes are kept per engine; the oldest go first
    6+ prefixes     string   two each: hash, 1 (was cached) or 0 (was not)

  RETURNS
    WITNESSED  epoch  grant  kept
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

local meta, evidence = KEYS[1], KEYS[2]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local keep_ms, most, prefixes = tonumber(ARGV[4]), tonumber(ARGV[5]), { unpack(ARGV, 6) }

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
redis.call('ZREMRANGEBYSCORE', evidence, '-inf', fleet.now)
for i = 1, #prefixes, 2 do
  if prefixes[i + 1] == '1' then
    redis.call('ZADD', evidence, fleet.now + keep_ms, prefixes[i])
  else
    redis.call('ZREM', evidence, prefixes[i])
  end
end
redis.call('ZREMRANGEBYRANK', evidence, 0, -most - 1)
save_fleet(fleet)
return { 'WITNESSED', fleet.epoch, fleet.grant, redis.call('ZCARD', evidence) }
