#!lua flags=no-writes
--[[
  inspect: one line per live lease, the soonest to expire first; changes nothing.

  Made for an engineer with nothing but redis-cli, so this file runs as it is, without includes:
    redis-cli --eval lua/inspect.lua 'tenure:{demo}:meta'
    redis-cli --eval lua/inspect.lua 'tenure:{demo}:meta' , 50
  Cost: O(log N + M) for M lines.

  KEYS
    1  meta  hash     its name gives the fleet's prefix

  ARGV
    1  most  integer  how many lines; 1000 when left out

  RETURNS
    one line per lease: lease=... request_id=... tenant=... class=... engine=... holder=... phase=...
    acquired_at=... age_ms=... expires_in_ms=...
]]

local meta = KEYS[1]
local most = math.min(tonumber(ARGV[1]) or 1000, 10000)

local prefix = string.sub(meta, 1, -5)
local time = redis.call('TIME')
local wall = time[1] * 1000 + math.floor(time[2] / 1000)
local clock, last, tick_ms = unpack(redis.call('HMGET', meta, 'clock', 'last', 'tick_ms'))
-- The lease clock as the next script that writes would set it: at most two ticks after its last value.
local since = math.max(wall - (tonumber(last) or wall), 0)
local now = (tonumber(clock) or wall) + math.min(since, 2 * (tonumber(tick_ms) or 0))

local lines = {}
local live = redis.call(
  'ZRANGEBYSCORE',
  prefix .. 'pool:total',
  '(' .. string.format('%.0f', now),
  '+inf',
  'WITHSCORES',
  'LIMIT',
  0,
  most
)
for i = 1, #live, 2 do
  local lease, expiry = live[i], tonumber(live[i + 1])
  local words = { 'lease=' .. lease }
  local fields = { 'request_id', 'tenant', 'class', 'engine', 'holder', 'phase', 'acquired_at' }
  local values = redis.call('HMGET', prefix .. 'lease:' .. lease, unpack(fields))
  for n, field in ipairs(fields) do
    words[#words + 1] = field .. '=' .. (values[n] or '?')
  end
  words[#words + 1] = string.format('age_ms=%.0f', math.max(0, wall - (tonumber(values[7]) or wall)))
  words[#words + 1] = string.format('expires_in_ms=%.0f', expiry - now)
  lines[#lines + 1] = table.concat(words, ' ')
end
return lines
