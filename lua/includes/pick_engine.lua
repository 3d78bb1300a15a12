-- pick_engine(fleet, limits, engines, prefixes) -> picked, full. the fittest engine with room
--
-- picked = { name, warm } or nil; full = { name, live, limit } of the least loaded engine without room.
-- An engine that is known to hold a prefix of the prompt comes before one that is not; among equals the one
-- with the fewest live permits, then the caller's order.
local function pick_engine(fleet, limits, engines, prefixes)
  local picked, full
  for _, name in ipairs(engines) do
    local in_use = live(fleet.prefix .. 'pool:engine:' .. name, fleet.now)
    local limit = tonumber(redis.call('HGET', limits, 'engine:' .. name)) or math.huge
    if in_use >= limit then
      if not full or in_use < full.live then
        full = { name = name, live = in_use, limit = limit }
      end
    else
      local warm = false
      if #prefixes > 0 then
        local expiries = redis.call('ZMSCORE', fleet.prefix .. 'evidence:' .. name, unpack(prefixes))
        for _, expiry in ipairs(expiries) do
          warm = warm or (expiry and tonumber(expiry) > fleet.now) or false
        end
      end
      if not picked or (warm and not picked.warm) or (warm == picked.warm and in_use < picked.live) then
        picked = { name = name, warm = warm, live = in_use }
      end
    end
  end
  return picked, full
end
