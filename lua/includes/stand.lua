-- stand(fleet, limits, tenant, left) -> boolean. puts a tenant where it belongs in line; false: no one waits
--
-- The fairest is the tenant with the least live/weight, on equal shares the one whose oldest waiter came
-- first: both in one number, the share in 1/1024 above the ticket of the head. Derived from what is held now,
-- so it cannot drift and no tenant gains by staying away. A tenant at its quota stands nowhere until it is
-- below. `left` is the class in which somebody left the line, or `any`.
local function stand(fleet, limits, tenant, left)
  local line, waits, share = fleet.prefix .. 'line:', false, nil
  for n = 1, 2 do
    local class = n == 1 and 'warm' or 'cold'
    local head = redis.call('ZRANGE', line .. 'queue:' .. class .. ':' .. tenant, '0', '0', 'WITHSCORES')
    if head[1] and not waits then
      local cap, pool = caps(fleet, limits, tenant, {}), 'tenant:' .. tenant
      local in_use = live(fleet, pool, 0)
      if cap and not full(fleet, cap, 'tenant', pool, cap.tenant) then
        local weight = cap.weight
        if weight == nil then
          weight = redis.call('HGET', limits, 'weight:' .. tenant)
        end
        share = math.min(math.floor(in_use * 1024 / math.max(tonumber(weight) or 1, 0.001)), 1048575)
      end
      waits = true
    end
    if head[1] and share then
      local place = string.format('%.0f', share * 4294967296 + head[2] % 4294967296)
      put(line .. 'next:' .. class, place, tenant)
    elseif head[1] or left == class or left == 'any' then
      redis.call('ZREM', line .. 'next:' .. class, tenant)
    end
  end
  if left and not waits then
    redis.call('ZREM', line .. 'tenants', tenant)
  end
  return waits
end
