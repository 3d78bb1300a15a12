-- settle(fleet, events, most) -> integer. drops overdue leases, `most` at a time, into the events
--
-- Overdue leases are counted by nobody, so how many are dropped decides only how tidy the sets are; the bound
-- keeps ten thousand holders that died together from making one request wait.
local function settle(fleet, events, most)
  local total = fleet.prefix .. 'pool:total'
  local overdue = fleet.overdue or redis.call('ZCOUNT', total, '-inf', fleet.clock)
  if overdue == 0 then
    return 0
  end
  local leases = redis.call('ZRANGEBYSCORE', total, '-inf', fleet.clock, 'LIMIT', 0, most)
  fleet.freed = fleet.freed or {}
  for _, lease in ipairs(leases) do
    local record = fleet.prefix .. 'lease:' .. lease
    local fields = redis.call('HMGET', record, 'tenant', 'engine', 'holder', 'class', 'acquired_at')
    local tenant, engine, holder, class, acquired_at = unpack(fields)
    leave(fleet.prefix, lease, tenant, engine)
    fleet.freed[tenant or ''] = fleet.freed[tenant or ''] or 'places'
    local age_ms = math.max(0, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    local facts = { 'reclaimed', lease, tenant or '', holder or '', class or '', engine or '', age_ms }
    note(events, 'kind lease tenant holder class engine age_ms', facts)
  end
  -- While many are left, the other pools hold many that ran out, too.
  fleet.crowded = overdue > #leases
  return #leases
end
