-- lives(gateways, lease, now) -> boolean. whether the gateway that made this lease id still ticks
local function lives(gateways, lease, now)
  local holder = string.match(lease, '^(.*)~[^~]*$')
  local session = holder and redis.call('ZSCORE', gateways, holder)
  return session and tonumber(session) > now or false
end
