-- grant(fleet, demand, engine, class, provisional_ms) -> integer. writes the places and record of a permit
local function grant(fleet, demand, engine, class, provisional_ms)
  local prefix, expiry = fleet.prefix, fleet.now + provisional_ms
  redis.call('ZADD', prefix .. 'pool:total', expiry, demand.lease)
  redis.call('ZADD', prefix .. 'pool:tenant:' .. demand.tenant, expiry, demand.lease)
  redis.call('ZADD', prefix .. 'pool:engine:' .. engine, expiry, demand.lease)
  if class == 'cold' then
    redis.call('ZADD', prefix .. 'pool:cold', expiry, demand.lease)
  end
  fleet.grant = redis.call('HINCRBY', prefix .. 'meta', 'grant', 1)
  redis.call(
    'HSET',
    prefix .. 'lease:' .. demand.lease,
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
    fleet.wall,
    'grant',
    fleet.grant
  )
  return fleet.grant
end
