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

-- peek_fleet(meta) -> fleet. what open_fleet would say, writing nothing
local function peek_fleet(meta)
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch, clock, last, learning_until, tick_ms =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'tick_ms'))
  local since = math.max(wall - (tonumber(last) or wall), 0)
  local now = (tonumber(clock) or wall) + math.min(since, 2 * (tonumber(tick_ms) or 0))
  return {
    prefix = string.sub(meta, 1, -5),
    now = now,
    clock = string.format('%.0f', now),
    epoch = epoch or '',
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - now),
  }
end
-- live(fleet, pool, enough) -> integer. the one way to count: members whose lease is not past
--
-- No reaper is needed for it. Of a pool with less than `enough` members those that ran out are not told from
-- the others, unless many ran out together; 0 always tells them. Either costs the same however large the pool
-- is. A dispatch remembers what it counted: in `counted`, and in `exact` where it told them.
local function live(fleet, pool, enough)
  local counted, exact, key = fleet.counted, fleet.exact, fleet.prefix .. 'pool:' .. pool
  local count = counted and counted[pool] or redis.call('ZCARD', key)
  if (count >= enough or fleet.crowded) and not (exact and exact[pool]) then
    count = count - redis.call('ZCOUNT', key, '-inf', fleet.clock)
    if exact then
      exact[pool] = true
    end
  end
  if counted then
    counted[pool] = count
  end
  return count
end

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
