-- ticks(fleet, holder) -> boolean. whether a gateway has a session, asked once
local function ticks(fleet, holder)
  fleet.sessions = fleet.sessions or {}
  local known = fleet.sessions[holder]
  if known == nil then
    local session = redis.call('ZSCORE', fleet.prefix .. 'gateways', holder)
    known = session and tonumber(session) > fleet.now or false
    fleet.sessions[holder] = known
  end
  return known
end
