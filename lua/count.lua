#!lua flags=no-writes
--[[
  count: live leases per pool, who waits, and the limits in force, at one instant.

  Changes nothing. Cost: O(P log N + F) for P pools and F fields of the limits.

  KEYS
    1  meta      hash   epoch, clock, last, learning_until, tick_ms
    2  limits    hash   total, cold, tenant_default, tenant:T, engine:E, ...
    3  gateways  zset   holder -> session expiry
    4  waiting   hash   lease -> the demand of one who stands in line

  ARGV
    1+ pools     string   further pools to count: tenant:T, engine:E, and waiting:T for T's part of the line

  RETURNS
    COUNTED  epoch  clock  learning_ms  gateways  total  cold  waiting  pools ...  then limits ...
]]

-- @include peek_fleet
-- @include live

local meta, limits, gateways, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local pools = ARGV

local fleet = peek_fleet(meta)
local prefix = string.sub(meta, 1, -5)
local reply = {
  'COUNTED',
  fleet.epoch,
  fleet.now,
  fleet.learning_ms,
  redis.call('ZCOUNT', gateways, '(' .. fleet.clock, '+inf'),
  live(fleet, 'total', 0),
  live(fleet, 'cold', 0),
  redis.call('HLEN', waiting),
}
for _, pool in ipairs(pools) do
  local waits = string.match(pool, '^waiting:(.*)$')
  local queue = waits and prefix .. 'line:queue:'
  reply[#reply + 1] = not waits and live(fleet, pool, 0)
    or redis.call('ZCARD', queue .. 'warm:' .. waits) + redis.call('ZCARD', queue .. 'cold:' .. waits)
end
for _, text in ipairs(redis.call('HGETALL', limits)) do
  reply[#reply + 1] = text
end
return reply
