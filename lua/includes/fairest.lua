-- fairest(line, class, passed, stuck) -> list. tenant and score of who is next in a class; empty: nobody
--
-- Those who are stuck in this script are stepped over. `passed` remembers per class how many of them are in
-- front, for as long as nothing changes the order.
local function fairest(line, class, passed, stuck)
  while true do
    local found = redis.call('ZRANGE', line .. 'next:' .. class, passed[class], passed[class], 'WITHSCORES')
    if not found[1] or not stuck[class .. ':' .. found[1]] then
      return found
    end
    passed[class] = passed[class] + 1
  end
end
