-- write_record(record, request_id, tenant, class, engine, holder, acquired_at, grant) -> nothing. facts
local function write_record(record, request_id, tenant, class, engine, holder, acquired_at, grant)
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
    engine,
    'holder',
    holder,
    'phase',
    'granted',
    'acquired_at',
    acquired_at,
    'grant',
    grant
  )
end
