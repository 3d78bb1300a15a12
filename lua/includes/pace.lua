-- pace(fleet, meta, every_ms) -> nothing. measures how often a place comes free
--
-- Where a pool is full, each grant follows a release; so grants are what is counted, once in a while, and the
-- scripts that grant and release do nothing for it. Without a grant the last figure stands.
local function pace(fleet, meta, every_ms)
  local sampled_at, sampled_grant = unpack(redis.call('HMGET', meta, 'sampled_at', 'sampled_grant'))
  local elapsed_ms = fleet.now - (tonumber(sampled_at) or 0)
  if elapsed_ms < every_ms then
    return
  end
  local grants = fleet.grant - (tonumber(sampled_grant) or fleet.grant)
  if grants > 0 then
    redis.call('HSET', meta, 'gap', math.ceil(math.min(elapsed_ms / grants, 60000)))
  end
  redis.call('HSET', meta, 'sampled_at', fleet.now, 'sampled_grant', fleet.grant)
end
