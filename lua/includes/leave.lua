-- leave(prefix, lease, tenant, engine) -> boolean. gives all places of a lease back; false: it had none
--
-- Removal is the exactly-once test: whoever removes the member returned the capacity, nobody else can.
local function leave(prefix, lease, tenant, engine)
  local removed = redis.call('ZREM', prefix .. 'pool:total', lease)
    + redis.call('ZREM', prefix .. 'pool:cold', lease)
  if tenant and tenant ~= '' then
    removed = removed + redis.call('ZREM', prefix .. 'pool:tenant:' .. tenant, lease)
  end
  if engine and engine ~= '' then
    removed = removed + redis.call('ZREM', prefix .. 'pool:engine:' .. engine, lease)
  end
  redis.call('DEL', prefix .. 'lease:' .. lease)
  return removed > 0
end
