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
return { 'WITNESSED', fleet.epoch, fleet.grant, redis.call('ZCARD', evidence) }
