-- grant(fleet, demand, engine, class, provisional_ms) -> integer. writes the places and record of a permit
local function grant(fleet, demand, engine, class, provisional_ms)
  local prefix, lease = fleet.prefix, demand.lease
  local pools, expiry = prefix .. 'pool:', string.format('%.0f', fleet.now + provisional_ms)
  redis.call('ZADD', pools .. 'total', expiry, lease)
  redis.call('ZADD', pools .. 'tenant:' .. demand.tenant, expiry, lease)
  redis.call('ZADD', pools .. 'engine:' .. engine, expiry, lease)
  if class == 'cold' then
    redis.call('ZADD', pools .. 'cold', expiry, lease)
  end
  fleet.grant = fleet.grant + 1
  fleet.granted = string.format('%.0f', fleet.grant)
  redis.call(
    'HSET',
    prefix .. 'lease:' .. lease,
    'request_id',
    demand.request_id,
    'tenant',
    demand.tenant,
    'class',
    class,
    'engine',
    engine,
    'holder',
    demand.holder,
    'phase',
    'granted',
    'acquired_at',
    fleet.wall_text,
    'grant',
    fleet.granted
  )
  return fleet.grant
end
