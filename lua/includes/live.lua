-- live(pool, now) -> integer. the one way to count: members whose lease is not past, so no reaper is needed
local function live(pool, now)
  return redis.call('ZCOUNT', pool, '(' .. string.format('%.0f', now), '+inf')
end
