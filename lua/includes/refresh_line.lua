-- refresh_line(fleet, limits, tenants, heads) -> nothing. looks again at those who waited longest for a look
--
-- What changed without anybody freeing a place (a lease that lapsed, a limit that was edited by hand, a
-- gateway that died) reaches the order of the line here, a bounded number of tenants at a time. A few drawn
-- by lot are looked at too, so that no dead waiter fills the line for long, wherever it stands.
local function refresh_line(fleet, limits, tenants, heads)
  local line = fleet.prefix .. 'line:'
  for _, lease in ipairs(redis.call('HRANDFIELD', line .. 'waiting', tenants)) do
    local demand = waiter(fleet, lease)
    if
      demand.deadline <= fleet.now
      or not lives(fleet.prefix .. 'gateways', lease, fleet.now)
      or not redis.call('ZSCORE', line .. 'queue:' .. demand.class .. ':' .. demand.tenant, lease)
    then
      stand(fleet, limits, step_out(fleet, lease))
    elseif not redis.call('ZSCORE', line .. 'tenants', demand.tenant) then
      stand(fleet, limits, demand.tenant)
    end
  end
  for _, tenant in ipairs(redis.call('ZRANGE', line .. 'tenants', 0, tenants - 1)) do
    for _, class in ipairs({ 'warm', 'cold' }) do
      local queue = line .. 'queue:' .. class .. ':' .. tenant
      for _, lease in ipairs(redis.call('ZRANGE', queue, 0, heads - 1)) do
        local demand = waiter(fleet, lease)
        if not demand then
          redis.call('ZREM', queue, lease)
        elseif demand.deadline <= fleet.now or not lives(fleet.prefix .. 'gateways', lease, fleet.now) then
          step_out(fleet, lease)
        end
      end
    end
    stand(fleet, limits, tenant)
  end
end
