-- live(fleet, pool, enough) -> integer. the one way to count: members whose lease is not past
--
-- No reaper is needed for it. Of a pool with less than `enough` members those that ran out are not told from
-- the others, unless many ran out together; 0 always tells them. Either costs the same however large the pool
-- is. A dispatch remembers what it counted: in `counted`, and in `exact` where it told them.
local function live(fleet, pool, enough)
  local counted, exact, key = fleet.counted, fleet.exact, fleet.prefix .. 'pool:' .. pool
  local count = counted and counted[pool] or redis.call('ZCARD', key)
  if (count >= enough or fleet.crowded) and not (exact and exact[pool]) then
    count = count - redis.call('ZCOUNT', key, '-inf', fleet.clock)
    if exact then
      exact[pool] = true
    end
  end
  if counted then
    counted[pool] = count
  end
  return count
end
