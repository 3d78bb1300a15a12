-- mend_pool(fleet, pool, total, ttl_ms) -> drift. makes one pool agree with the total, boundedly
--
-- Drops what is overdue, what no lease of the total accounts for, and cuts expiries that no tick can have
-- written. A member whose gateway still ticks is left to it: it re-asserts what it runs, and only it knows.
-- Ghosts are never renewed, so they are the first by score and a bounded look finds them.
local function mend_pool(fleet, pool, total, ttl_ms)
  local drift = 0
  -- Those of the total are settled, never just dropped: each of them is to be reported.
  local overdue = pool == total and {} or redis.call('ZRANGEBYSCORE', pool, '-inf', fleet.now, 'LIMIT', 0, 64)
  if #overdue > 0 then
    redis.call('ZREM', pool, unpack(overdue))
  end
  for _, lease in ipairs(redis.call('ZRANGEBYSCORE', pool, fleet.now + ttl_ms + 1, '+inf', 'LIMIT', 0, 64)) do
    redis.call('ZADD', pool, fleet.now + ttl_ms, lease)
    drift = drift + 1
  end
  local members = pool == total and {} or redis.call('ZRANGE', pool, 0, 127)
  local scores = #members > 0 and redis.call('ZMSCORE', total, unpack(members)) or {}
  for n, lease in ipairs(members) do
    if not scores[n] then
      drift = drift + 1
      if not lives(fleet, lease) then
        redis.call('ZREM', pool, lease)
      end
    end
  end
  return drift
end
