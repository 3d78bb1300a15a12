-- step_out(fleet, lease) -> tenant or nil. takes one waiter out of the line; nil: it stood in none
local function step_out(fleet, lease)
  local demand = waiter(fleet, lease)
  if demand then
    redis.call('HDEL', fleet.prefix .. 'line:waiting', lease)
    redis.call('ZREM', fleet.prefix .. 'line:queue:' .. demand.class .. ':' .. demand.tenant, lease)
    return demand.tenant
  end
end
