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

-- @include read_clock
-- @include open_fleet
-- @include save_fleet

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
