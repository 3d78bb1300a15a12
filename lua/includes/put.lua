-- put(key, score, member) -> nothing. adds to one of the line's sorted sets, or moves what is there
--
-- Up to 128 short members are one piece of memory to Redis, read from its front: a write among a hundred
-- costs five times what it costs among ten thousand. One member of more than 64 bytes makes the set a tree,
-- and a tree it stays while it has members.
local function put(key, score, member)
  if redis.call('ZADD', key, score, member) == 1 and redis.call('ZCARD', key) == 17 then
    local long = string.rep('-', 65)
    redis.call('ZADD', key, 0, long)
    redis.call('ZREM', key, long)
  end
end
