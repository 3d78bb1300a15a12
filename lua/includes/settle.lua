-- settle(fleet, limits, events, most) -> integer. drops overdue leases, `most` at a time, into the events
--
-- Overdue leases are counted by nobody, so how many are dropped decides only how tidy the sets are; the bound
-- keeps ten thousand holders that died together from making one request wait.
local function settle(fleet, limits, events, most)
  local total = fleet.prefix .. 'pool:total'
  local overdue = redis.call('ZRANGEBYSCORE', total, '-inf', fleet.now, 'LIMIT', 0, most)
  for _, lease in ipairs(overdue) do
    local record = fleet.prefix .. 'lease:' .. lease
    local fields = redis.call('HMGET', record, 'tenant', 'engine', 'holder', 'class', 'acquired_at')
    local tenant, engine, holder, class, acquired_at = unpack(fields)
    leave(fleet.prefix, lease, tenant, engine)
    if fleet.waiting > 0 then
      stand(fleet, limits, tenant or '')
    end
    local age_ms = math.max(0, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    local facts = { 'reclaimed', lease, tenant or '', holder or '', class or '', engine or '', age_ms }
    note(events, 'kind lease tenant holder class engine age_ms', facts)
  end
  return #overdue
end
