-- full(fleet, cap, kind, pool, limit) -> table or nil. a pool without a free place: { name, live, limit }
--
-- A pool that is only watched is never full.
local function full(fleet, cap, kind, pool, limit)
  local in_use = live(fleet, pool, limit)
  if in_use >= limit and not (cap.shadow and string.find(cap.shadow, ' ' .. kind .. ' ', 1, true)) then
    return { name = pool, live = in_use, limit = limit }
  end
end
