-- pick_engine(fleet, limits, cap, engines) -> name, full. the engine with room and the fewest live permits
--
-- Among equals the caller's order decides. Without room anywhere name is nil and full = { name, live, limit }
-- of the least loaded.
local function pick_engine(fleet, limits, cap, engines)
  local name, least, full
  for _, candidate in ipairs(engines) do
    local in_use = live(fleet.prefix .. 'pool:engine:' .. candidate, fleet.now)
    cap.engine = tonumber(redis.call('HGET', limits, 'engine:' .. candidate)) or math.huge
    if room(cap, 'engine', in_use) <= 0 then
      if not full or in_use < full.live then
        full = { name = candidate, live = in_use, limit = cap.engine }
      end
    elseif not name or in_use < least then
      name, least = candidate, in_use
    end
  end
  return name, full
end
