-- grant(fleet, demand, engine, class, provisional_ms) -> integer. writes the places and record of a permit
local function grant(fleet, demand, engine, class, provisional_ms)
  local prefix, lease, tenant = fleet.prefix, demand.lease, demand.tenant
  local pools, expiry = prefix .. 'pool:', string.format('%d', fleet.now + provisional_ms)
  redis.call('ZADD', pools .. 'total', expiry, lease)
  redis.call('ZADD', pools .. 'tenant:' .. tenant, expiry, lease)
  redis.call('ZADD', pools .. 'engine:' .. engine, expiry, lease)
  if class == 'cold' then
    redis.call('ZADD', pools .. 'cold', expiry, lease)
  end
  fleet.grant = fleet.grant + 1
  fleet.granted = string.format('%d', fleet.grant)
  local record, at, number = prefix .. 'lease:' .. lease, fleet.wall_text, fleet.granted
  write_record(record, demand.request_id, tenant, class, engine, demand.holder, at, number)
  return fleet.grant
end
