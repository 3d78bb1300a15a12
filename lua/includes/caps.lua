-- caps(limits, tenant) -> caps or nil. the limits in force for one tenant; nil: the fleet has none
--
-- `shadow` lists kinds of pools (total, cold, tenant, engine) whose limits are only watched: they stay in
-- `caps` for people to see and admit everybody, so operators can learn a number before they enforce it.
local function caps(limits, tenant)
  local total, cold, default, own, shadow =
    unpack(redis.call('HMGET', limits, 'total', 'cold', 'tenant_default', 'tenant:' .. tenant, 'shadow'))
  if not total then
    return nil
  end
  total = tonumber(total) or 0
  return {
    total = total,
    cold = tonumber(cold) or 0,
    tenant = tonumber(own) or tonumber(default) or total,
    shadow = shadow and ' ' .. string.gsub(shadow, '[^a-z]', ' ') .. ' ',
  }
end
