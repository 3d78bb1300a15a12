-- pick_engine(fleet, limits, cap, engines) -> name, full. the engine with room and the fewest live permits
--
-- Among equals the caller's order decides. Without room anywhere name is nil, and full says so of the least
-- loaded.
local function pick_engine(fleet, limits, cap, engines)
  local name, least, blocked
  for n = 1, #engines do
    local pool, limit = 'engine:' .. engines[n], cap.engines[engines[n]]
    if not limit then
      limit = tonumber(redis.call('HGET', limits, pool)) or math.huge
      cap.engines[engines[n]] = limit
    end
    local no_room = full(fleet, cap, 'engine', pool, limit)
    local in_use = no_room and no_room.live or #engines > 1 and live(fleet, pool, limit) or 0
    if no_room then
      blocked = blocked and blocked.live <= in_use and blocked or no_room
    elseif not name or in_use < least then
      name, least = engines[n], in_use
    end
  end
  return name, blocked
end
