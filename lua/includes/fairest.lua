-- fairest(fleet, cap, passed, stuck) -> class, tenant. who is next in line; nil: nobody
--
-- Of the warm and, where the cold pool has room, of the cold. Those who are stuck in this script are stepped
-- over; `passed` remembers per class how many of them are in front, while nothing changes the order.
local function fairest(fleet, cap, passed, stuck)
  local class, tenant, least
  for n = 1, 2 do
    local next_ = n == 1 and 'warm' or 'cold'
    while next_ == 'warm' or not full(fleet, cap, 'cold', 'cold', cap.cold) do
      local at = passed[next_] or '0'
      local found = redis.call('ZRANGE', fleet.prefix .. 'line:next:' .. next_, at, at, 'WITHSCORES')
      if not (found[1] and stuck[next_ .. ':' .. found[1]]) then
        local place = tonumber(found[2])
        if place and (not least or place < least) then
          class, tenant, least = next_, found[1], place
        end
        break
      end
      passed[next_] = at + 1
    end
  end
  return class, tenant
end
