-- room(cap, kind, in_use) -> integer. free places of one pool; a watched pool always has one more
local function room(cap, kind, in_use)
  if cap.shadow and string.find(cap.shadow, ' ' .. kind .. ' ', 1, true) then
    return math.huge
  end
  return cap[kind] - in_use
end
