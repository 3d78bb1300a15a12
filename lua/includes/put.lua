-- put(key, score, member) -> nothing. adds to one of the line's sorted sets, or moves what is there
--
-- A set of some size is made a tree.
local function put(key, score, member)
  if redis.call('ZADD', key, score, member) == 1 and redis.call('ZCARD', key) == 17 then
    tree(key)
  end
end
