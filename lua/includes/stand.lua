-- stand(fleet, limits, tenant) -> nothing. puts a tenant where it belongs among those who may be granted next
--
-- The fairest is the tenant with the least live/weight, on equal shares the one whose oldest waiter came
-- first: both in one number, the share in 1/1024 above the ticket of the head. Derived from what is held now,
-- so it cannot drift and no tenant gains by staying away. A tenant at its quota stands nowhere until it is
-- below.
local function stand(fleet, limits, tenant)
  local line = fleet.prefix .. 'line:'
  local cap = caps(limits, tenant)
  local in_use = live(fleet.prefix .. 'pool:tenant:' .. tenant, fleet.now)
  local share = math.min(math.floor(in_use * 1024 / (cap and cap.weight or 1)), 1048575)
  local waits = false
  for _, class in ipairs({ 'warm', 'cold' }) do
    local head = redis.call('ZRANGE', line .. 'queue:' .. class .. ':' .. tenant, 0, 0, 'WITHSCORES')
    waits = waits or #head > 0
    if #head > 0 and cap and room(cap, 'tenant', in_use) > 0 then
      redis.call(
        'ZADD',
        line .. 'next:' .. class,
        share * 4294967296 + tonumber(head[2]) % 4294967296,
        tenant
      )
    else
      redis.call('ZREM', line .. 'next:' .. class, tenant)
    end
  end
  if waits then
    redis.call('ZADD', line .. 'tenants', fleet.now, tenant)
  else
    redis.call('ZREM', line .. 'tenants', tenant)
  end
end
