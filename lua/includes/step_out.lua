-- step_out(fleet, lease, known) -> tenant or nil. takes one waiter out of the line; nil: it stood in none
--
-- `known` is its demand, where the caller has read it already. Where its tenant stands then is the caller's
-- to say: by `stand`, or in `freed` for the next dispatch.
local function step_out(fleet, lease, known)
  local demand = known or waiter(fleet, lease)
  if demand then
    redis.call('HDEL', fleet.prefix .. 'line:waiting', lease)
    redis.call('ZREM', fleet.prefix .. 'line:queue:' .. demand.class .. ':' .. demand.tenant, lease)
    return demand.tenant
  end
end
