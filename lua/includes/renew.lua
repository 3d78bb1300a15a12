-- renew(pool, scored) -> boolean. moves the expiries of members; false: some are none, or did not move
--
-- `scored` is what ZADD takes: expiry, lease, expiry, lease ... Nothing is added: that is the caller's to do,
-- who knows why a member may be missing. A pool of some size is made a tree for all who use it; whoever has
-- only a few in it leaves that to others.
local function renew(pool, scored)
  local moved = redis.call('ZADD', pool, 'XX', 'CH', unpack(scored))
  local members = #scored > 8 and redis.call('ZCARD', pool) or 0
  if members > 16 and members <= 128 then
    tree(pool)
  end
  return moved * 2 == #scored
end
