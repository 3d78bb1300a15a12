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

-- read_clock(meta, nonce, tick_ms, learning_ms) -> values. moves the lease clock on, or starts an epoch
--
-- In this order: epoch, grant, now, clock, wall, wall_text, learning_ms, moved. The first half of a script
-- has them as they are; for what is shared by all scripts `open_fleet` makes a table of them.
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
-- `clock` and `wall_text` are `now` and `wall` as text: Redis would print a number anew for each command that
-- takes it. What moved is for the caller to write. Whoever finds no clock starts an epoch.
local function read_clock(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local us = time[2] + 0
  local wall = time[1] * 1000 + (us - us % 1000) / 1000
  local found = redis.call('HMGET', meta, 'clock', 'last', 'grant', 'epoch', 'learning_until')
  local clock, last, grant, epoch, learning_until = found[1], found[2], found[3], found[4], found[5]
  local now = tonumber(clock)
  local before = clock == last and now or tonumber(last)

  if not (epoch and now and before) then
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local total = string.sub(meta, 1, -5) .. 'pool:total'
    local top = redis.call('ZREVRANGE', total, 0, 0, 'WITHSCORES')[2]
    now = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant, before = nonce, now + learning_ms, 0, nil
    -- What each script reads and writes comes first: Redis looks through a small hash from its front.
    redis.call('HSET', meta, 'clock', now, 'last', wall, 'grant', grant, 'epoch', epoch)
    redis.call('HSET', meta, 'learning_until', learning_until, 'tick_ms', tick_ms, 'schema', 1)
  elseif wall > before then
    now = now + math.min(wall - before, 2 * tick_ms)
  end
  local wall_text, left = last, (tonumber(learning_until) or 0) - now
  if wall ~= before then
    wall_text = string.format('%d', wall)
    clock = now == wall and wall_text or string.format('%d', now)
  end
  return epoch, tonumber(grant) or 0, now, clock, wall, wall_text, left > 0 and left or 0, wall ~= before
end
-- open_fleet(meta, epoch, grant, now, clock, wall, wall_text, learning_ms, moved) -> fleet. a table
--
-- Takes what `read_clock` found. Whoever opens it ends with `save_fleet`, which writes what moved.
local function open_fleet(meta, epoch, grant, now, clock, wall, wall_text, learning_ms, moved)
  return {
    meta = meta,
    prefix = string.sub(meta, 1, -5),
    epoch = epoch,
    grant = grant,
    now = now,
    clock = clock,
    wall = wall,
    wall_text = wall_text,
    learning_ms = learning_ms,
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

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
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
