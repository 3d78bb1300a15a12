-- settle(fleet, events, most) -> integer. drops overdue leases, `most` at a time, into the event stream
--
-- Overdue leases are counted by nobody, so how many are dropped decides only how tidy the sets are; the bound
-- keeps ten thousand holders that died together from making one request wait.
local function settle(fleet, events, most)
  local total = fleet.prefix .. 'pool:total'
  local overdue = redis.call('ZRANGEBYSCORE', total, '-inf', fleet.now, 'LIMIT', 0, most)
  for _, lease in ipairs(overdue) do
    local tenant, engine, holder, class, acquired_at = unpack(
      redis.call(
        'HMGET',
        fleet.prefix .. 'lease:' .. lease,
        'tenant',
        'engine',
        'holder',
        'class',
        'acquired_at'
      )
    )
    leave(fleet.prefix, lease, tenant, engine)
    redis.call(
      'XADD',
      events,
      'MAXLEN',
      '~',
      10000,
      '*',
      'kind',
      'reclaimed',
      'lease',
      lease,
      'tenant',
      tenant or '',
      'holder',
      holder or '',
      'class',
      class or '',
      'engine',
      engine or '',
      'age_ms',
      math.max(0, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    )
  end
  return #overdue
end
