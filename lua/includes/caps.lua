-- caps(limits, tenant) -> caps or nil. the limits in force for one tenant; nil: the fleet has none
--
-- Read once per tenant and script; without a tenant (''), those that all tenants share. `shadow` lists kinds
-- of pools (total, cold, tenant, engine) whose limits are only watched: they stay in `caps` for people to see
-- and admit everybody, so operators can learn a number before they enforce it.
local read_caps = {}
local function caps(limits, tenant)
  local known = read_caps[tenant] or tenant == '' and select(2, next(read_caps))
  if known then
    return known
  end
  local fields = { 'total', 'cold', 'tenant_default', 'tenant:' .. tenant, 'weight:' .. tenant, 'shadow' }
  local total, cold, default, own, weight, shadow = unpack(redis.call('HMGET', limits, unpack(fields)))
  if not total then
    return nil
  end
  total = tonumber(total) or 0
  read_caps[tenant] = {
    total = total,
    cold = tonumber(cold) or 0,
    tenant = tonumber(own) or tonumber(default) or total,
    weight = math.max(tonumber(weight) or 1, 0.001),
    shadow = shadow and ' ' .. string.gsub(shadow, '[^a-z]', ' ') .. ' ',
  }
  return read_caps[tenant]
end
