#!lua flags=no-writes
--[[
  line: one line per waiter, tenants in their order of fairness, then oldest first; changes nothing.

  Made for redis-cli like inspect, so this file runs as it is, without includes:
    redis-cli --eval lua/line.lua 'tenure:{demo}:meta'
  Cost: O(T + M) for T tenants that wait and M lines.

  KEYS
    1  meta  hash     its name gives the fleet's prefix

  ARGV
    1  most  integer  how many lines; 1000 when left out

  RETURNS
    one line per waiter: lease=... holder=... tenant=... class=... deadline_in_ms=... waited_ms=...
    request_id=...
]]

local meta = KEYS[1]
local most = math.min(tonumber(ARGV[1]) or 1000, 10000)

local line = string.sub(meta, 1, -5) .. 'line:'
local now = tonumber(redis.call('HGET', meta, 'clock')) or 0
local lines, seen = {}, {}
local function tell(tenant, class)
  local queue = line .. 'queue:' .. class .. ':' .. tenant
  for _, lease in ipairs(#lines < most and redis.call('ZRANGE', queue, 0, most - #lines - 1) or {}) do
    local words = {}
    for word in string.gmatch(redis.call('HGET', line .. 'waiting', lease) or '', '%S+') do
      words[#words + 1] = word
    end
    lines[#lines + 1] = string.format(
      'lease=%s holder=%s tenant=%s class=%s deadline_in_ms=%.0f waited_ms=%.0f request_id=%s',
      lease,
      words[1] or '?',
      tenant,
      class,
      (tonumber(words[4]) or now) - now,
      now - (tonumber(words[5]) or now),
      words[6] or '?'
    )
  end
  seen[class .. tenant] = true
end
for _, class in ipairs({ 'warm', 'cold' }) do
  for _, tenant in ipairs(redis.call('ZRANGE', line .. 'next:' .. class, 0, -1)) do
    tell(tenant, class)
  end
end
-- Those whose tenant is at its quota stand behind all others.
for _, tenant in ipairs(redis.call('ZRANGE', line .. 'tenants', 0, -1)) do
  for _, class in ipairs({ 'warm', 'cold' }) do
    if not seen[class .. tenant] then
      tell(tenant, class)
    end
  end
end
return lines
