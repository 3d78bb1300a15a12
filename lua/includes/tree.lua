-- tree(key) -> nothing. makes a sorted set a tree, which it stays while it has members
--
-- Up to 128 short members are one piece of memory to Redis, read from its front: a write among a hundred
-- costs five times what it costs among ten thousand. One member of more than 64 bytes makes the set a tree.
local function tree(key)
  local long = string.rep('-', 65)
  redis.call('ZADD', key, 0, long)
  redis.call('ZREM', key, long)
end
