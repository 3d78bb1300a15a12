-- lengthen(fleet, lease, tenant, engine, provisional_ms) -> nothing. a grant that is told again lasts anew
--
-- So whoever is told of a grant may rely on it for `provisional_ms` from before its call, however often it
-- asked. Only places that the lease still has, and none is cut short.
local function lengthen(fleet, lease, tenant, engine, provisional_ms)
  for _, pool in ipairs({ 'total', 'cold', 'tenant:' .. tenant, 'engine:' .. engine }) do
    redis.call('ZADD', fleet.prefix .. 'pool:' .. pool, 'XX', 'GT', fleet.now + provisional_ms, lease)
  end
end
