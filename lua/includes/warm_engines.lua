-- warm_engines(fleet, engines, prefixes) -> list. those that are known to hold one of the prefixes
local function warm_engines(fleet, engines, prefixes)
  local warm = {}
  for _, name in ipairs(#prefixes > 0 and engines or {}) do
    for _, expiry in ipairs(redis.call('ZMSCORE', fleet.prefix .. 'evidence:' .. name, unpack(prefixes))) do
      if expiry and tonumber(expiry) > fleet.now then
        warm[#warm + 1] = name
        break
      end
    end
  end
  return warm
end
