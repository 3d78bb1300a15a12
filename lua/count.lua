#!lua flags=no-writes
--[[
  count: live leases per pool, and the limits in force, at one instant.

  Changes nothing. Cost: O(P log N + F) for P pools and F fields of the limits.

  KEYS
    1  meta      hash   epoch, clock, last, learning_until, tick_ms
    2  limits    hash   total, cold, tenant_default, tenant:T, engine:E, ...
    3  total     zset   lease -> expiry on the lease clock, ms
    4  cold      zset   the same, cold places only
    5  gateways  zset   holder -> session expiry

  ARGV
    1+ pools     string   further pools to count: tenant:T, engine:E

  RETURNS
    COUNTED  epoch  clock  learning_ms  gateways  total  cold  pools ...  then limits ...
]]

-- @include peek_fleet
-- @include live

local meta, limits, total, cold, gateways = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local pools = ARGV

local fleet = peek_fleet(meta)
local prefix = string.sub(meta, 1, -5)
local reply = {
  'COUNTED',
  fleet.epoch,
  fleet.now,
  fleet.learning_ms,
  live(gateways, fleet.now),
  live(total, fleet.now),
  live(cold, fleet.now),
}
for _, pool in ipairs(pools) do
  reply[#reply + 1] = live(prefix .. 'pool:' .. pool, fleet.now)
end
for _, text in ipairs(redis.call('HGETALL', limits)) do
  reply[#reply + 1] = text
end
return reply
