-- refresh_line(fleet, limits, tenants, heads) -> nothing. looks again at those who waited longest for a look
--
-- What changed without anybody freeing a place (a lease that lapsed, a limit that was edited by hand, a
-- gateway that died) reaches the order of the line here, a bounded number of tenants at a time. A few drawn
-- by lot are looked at too, so that no dead waiter fills the line for long, wherever it stands.
local function refresh_line(fleet, limits, tenants, heads)
  local line = fleet.prefix .. 'line:'
  local seen = {}
  local drawn = redis.call('HRANDFIELD', line .. 'waiting', tenants, 'WITHVALUES')
  for n = 1, #drawn, 2 do
    local demand = waiter(fleet, drawn[n], drawn[n + 1])
    if
      demand.deadline <= fleet.now
      or not ticks(fleet, demand.holder)
      or not redis.call('ZSCORE', line .. 'queue:' .. demand.class .. ':' .. demand.tenant, demand.lease)
    then
      seen[step_out(fleet, demand.lease, demand)] = true
    elseif not redis.call('ZSCORE', line .. 'tenants', demand.tenant) then
      seen[demand.tenant] = true
    end
  end
  for _, tenant in ipairs(redis.call('ZRANGE', line .. 'tenants', 0, tenants - 1)) do
    seen[tenant] = true
    for _, class in ipairs({ 'warm', 'cold' }) do
      local queue = line .. 'queue:' .. class .. ':' .. tenant
      local leases = redis.call('ZRANGE', queue, 0, heads - 1)
      local records = #leases > 0 and redis.call('HMGET', line .. 'waiting', unpack(leases)) or {}
      for n, lease in ipairs(leases) do
        local demand = records[n] and waiter(fleet, lease, records[n])
        if not demand then
          redis.call('ZREM', queue, lease)
        elseif demand.deadline <= fleet.now or not ticks(fleet, demand.holder) then
          step_out(fleet, lease, demand)
        end
      end
    end
  end
  for tenant in pairs(seen) do
    if stand(fleet, limits, tenant, 'any') then
      put(line .. 'tenants', fleet.clock, tenant)
    end
  end
end
