-- lives(fleet, lease) -> boolean. whether the gateway that made this lease id still ticks
local function lives(fleet, lease)
  local holder = string.match(lease, '^(.*)~[^~]*$')
  return holder and ticks(fleet, holder) or false
end
