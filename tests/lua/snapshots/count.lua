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

-- peek_fleet(meta) -> fleet. what open_fleet would say, writing nothing
local function peek_fleet(meta)
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch, clock, last, learning_until, tick_ms =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'tick_ms'))
  local since = math.max(wall - (tonumber(last) or wall), 0)
  local now = (tonumber(clock) or wall) + math.min(since, 2 * (tonumber(tick_ms) or 0))
  return {
    now = now,
    epoch = epoch or '',
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - now),
  }
end
-- live(pool, now) -> integer. the one way to count: members whose lease is not past, so no reaper is needed
local function live(pool, now)
  return redis.call('ZCOUNT', pool, '(' .. string.format('%.0f', now), '+inf')
end

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
