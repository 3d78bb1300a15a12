-- caps(fleet, limits, tenant, engines, read) -> caps or nil. the limits in force; nil: there are none
--
-- Each is read once per script, those of `engines` with the first tenant's. `shadow` lists kinds of
-- pools (total, cold, tenant, engine) whose limits are only watched: they stay there for people to see and
-- admit everybody, so operators can learn a number before they enforce it. `read` is what the caller has read
-- already, all but the weight, which `stand` then asks for.
local function caps(fleet, limits, tenant, engines, read)
  local first, own, weight = fleet.cap, 'tenant:' .. tenant, 'weight:' .. tenant
  if fleet.caps[tenant] then
    return fleet.caps[tenant]
  end
  local cap
  if first then
    local found = redis.call('HMGET', limits, own, weight)
    cap = {
      total = first.total,
      cold = first.cold,
      default = first.default,
      tenant = tonumber(found[1]) or first.default,
      weight = found[2],
      shadow = first.shadow,
      engines = first.engines,
    }
  else
    local found = read
    if not found then
      local asked = { own }
      for n = 1, #engines do
        asked[n + 1] = 'engine:' .. engines[n]
      end
      asked[#asked + 1] = weight
      found = redis.call('HMGET', limits, 'total', 'cold', 'tenant_default', 'shadow', unpack(asked))
    end
    if not found[1] then
      return nil
    end
    local total, shadow = tonumber(found[1]) or 0, found[4]
    local default = tonumber(found[3]) or total
    cap = {
      total = total,
      cold = tonumber(found[2]) or 0,
      default = default,
      tenant = tonumber(found[5]) or default,
      weight = found[#engines + 6],
      shadow = shadow and shadow ~= '' and ' ' .. string.gsub(shadow, '[^a-z]', ' ') .. ' ',
      engines = {},
    }
    for n = 1, #engines do
      cap.engines[engines[n]] = tonumber(found[n + 5]) or math.huge
    end
    fleet.cap = cap
  end
  fleet.caps[tenant] = cap
  return cap
end
