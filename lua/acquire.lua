#!lua
--[[
  acquire: grant one permit in every pool of its demand, or change nothing and say which pool is full.

  Idempotent: the same lease id, asked for again while it lives, gets its first answer.
  The class is decided here, on the engine's own evidence: warm where an engine is known to hold one of
  the prefixes, cold everywhere else. The first lease is provisional: it is short until the first tick.
  Cost: O(E (log N + P) + D log N) for E engines, P prefixes, N live and D <= 32 overdue leases.

  KEYS
    1  meta          hash     epoch, clock, last, learning_until, grant
    2  limits        hash     total, cold, tenant_default, tenant:T, engine:E
    3  total         zset     lease -> expiry on the lease clock, ms
    4  cold          zset     the same, cold places only
    5  tenant_pool   zset     the same, this tenant only
    6  record        hash     the facts of this lease
    7  events        stream   what was reclaimed

  ARGV
    1  nonce           string   the epoch to start when there is none
    2  tick_ms         integer
    3  learning_ms     integer
    4  provisional_ms  integer  how long the first lease lasts
    5  lease           string   new for every demand; never reused
    6  holder          string   name~nonce of the gateway process
    7  tenant          string
    8  request_id      string
    9  engine_count    integer  how many of the rest are engines
    10+ candidates     string   the engines, then the prefixes that make the demand warm

  RETURNS
    GRANTED   epoch  grant  class  engine
    FULL      epoch  grant  pool  in_use  limit    one full pool, most specific first
    LEARNING  epoch  grant  left_ms                nothing is granted before holders had time to re-assert
    CLOSED    epoch  grant                         the fleet has no limits
]]

-- @include open_fleet
-- @include live
-- @include leave
-- @include settle
-- @include pick_engine

local meta, limits, total, cold, tenant_pool, record, events =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms = tonumber(ARGV[4])
local lease, holder, tenant, request_id, engine_count = ARGV[5], ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local candidates, engines, prefixes = 10, {}, {}
for i = candidates, #ARGV do
  if i < candidates + engine_count then
    engines[#engines + 1] = ARGV[i]
  else
    prefixes[#prefixes + 1] = ARGV[i]
  end
end

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
settle(fleet, events, 32)

-- The answer to an earlier call may have been lost: give it again rather than grant twice.
local expiry = redis.call('ZSCORE', total, lease)
if expiry and tonumber(expiry) > fleet.now then
  local grant, class, engine = unpack(redis.call('HMGET', record, 'grant', 'class', 'engine'))
  if engine then
    return { 'GRANTED', fleet.epoch, tonumber(grant) or 0, class, engine }
  end
end

if fleet.learning_ms > 0 then
  return { 'LEARNING', fleet.epoch, fleet.grant, fleet.learning_ms }
end

local total_max, cold_max, tenant_default, tenant_max =
  unpack(redis.call('HMGET', limits, 'total', 'cold', 'tenant_default', 'tenant:' .. tenant))
if not total_max then
  return { 'CLOSED', fleet.epoch, fleet.grant }
end
total_max = tonumber(total_max) or 0
cold_max = tonumber(cold_max) or 0
tenant_max = tonumber(tenant_max) or tonumber(tenant_default) or total_max

-- No write before every pool has room: Lua does not roll back. `>=` because a limit may have been lowered.
local in_use = live(tenant_pool, fleet.now)
if in_use >= tenant_max then
  return { 'FULL', fleet.epoch, fleet.grant, 'tenant:' .. tenant, in_use, tenant_max }
end
in_use = live(total, fleet.now)
if in_use >= total_max then
  return { 'FULL', fleet.epoch, fleet.grant, 'total', in_use, total_max }
end
local picked, full = pick_engine(fleet, limits, engines, prefixes)
if not picked then
  return { 'FULL', fleet.epoch, fleet.grant, 'engine:' .. full.name, full.live, full.limit }
end
if not picked.warm then
  in_use = live(cold, fleet.now)
  if in_use >= cold_max then
    return { 'FULL', fleet.epoch, fleet.grant, 'cold', in_use, cold_max }
  end
end

expiry = fleet.now + provisional_ms
redis.call('ZADD', total, expiry, lease)
redis.call('ZADD', tenant_pool, expiry, lease)
redis.call('ZADD', fleet.prefix .. 'pool:engine:' .. picked.name, expiry, lease)
local class = picked.warm and 'warm' or 'cold'
if class == 'cold' then
  redis.call('ZADD', cold, expiry, lease)
end
local grant = redis.call('HINCRBY', meta, 'grant', 1)
redis.call(
  'HSET',
  record,
  'request_id',
  request_id,
  'tenant',
  tenant,
  'class',
  class,
  'engine',
  picked.name,
  'holder',
  holder,
  'phase',
  'granted',
  'acquired_at',
  fleet.wall,
  'grant',
  grant
)
return { 'GRANTED', fleet.epoch, grant, class, picked.name }
