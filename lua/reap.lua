#!lua flags=allow-oom
--[[
  reap: take back the leases of holders that died, make the sets agree, and hand out what was reclaimed.

  Any number of reapers may run and none is needed for correctness: overdue leases are counted by nobody.
  Whoever settled a lease wrote it to the event stream; each such entry is handed to exactly one reaper.
  Idempotent. Cost: O(128 log N) per pool and O(log N) per record of this call.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant, reported
    2  total     zset     lease -> expiry on the lease clock, ms
    3  cold      zset     the same, cold places only
    4  gateways  zset     holder -> session expiry
    5  events    stream   what was reclaimed

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  ttl_ms       integer  no expiry can be further away than this
    5  pool_count   integer  how many of the rest are pools
    6+ suspects     string   pools to hold against the total (tenant:T, engine:E), then ids of leases

  RETURNS
    REAPED  epoch  grant  settled  drift  more  then lease, tenant, holder, class, engine, age_ms of each ...
]]

-- @include open_fleet
-- @include leave
-- @include settle
-- @include lives
-- @include mend_pool

local meta, total, cold, gateways, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, tick_ms, learning_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local pool_count, suspects = tonumber(ARGV[5]), 6

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
local settled = settle(fleet, events, 128)

local drift = mend_pool(fleet, total, total, gateways, ttl_ms)
  + mend_pool(fleet, cold, total, gateways, ttl_ms)
for i = suspects, #ARGV do
  if i < suspects + pool_count then
    drift = drift + mend_pool(fleet, fleet.prefix .. 'pool:' .. ARGV[i], total, gateways, ttl_ms)
  else
    -- Gone from both since the caller looked is the normal end of a lease; one without the other is drift.
    local record = fleet.prefix .. 'lease:' .. ARGV[i]
    local tenant, engine = unpack(redis.call('HMGET', record, 'tenant', 'engine'))
    if tenant and not redis.call('ZSCORE', total, ARGV[i]) then
      drift = drift + 1
      if not lives(gateways, ARGV[i], fleet.now) then
        leave(fleet.prefix, ARGV[i], tenant, engine)
      end
    end
  end
end
local members = redis.call('ZRANGE', total, 0, 127)
for _, lease in ipairs(members) do
  -- Its holder's tick writes the record again; without a holder the member is settled like any other.
  drift = drift + 1 - redis.call('EXISTS', fleet.prefix .. 'lease:' .. lease)
end

local reported = redis.call('HGET', meta, 'reported')
local entries = redis.call('XRANGE', events, reported and '(' .. reported or '-', '+', 'COUNT', 200)
local more = (settled == 128 or #entries == 200) and 1 or 0
local reply = { 'REAPED', fleet.epoch, fleet.grant, settled, drift, more }
for _, entry in ipairs(entries) do
  local fields = {}
  for n = 1, #entry[2], 2 do
    fields[entry[2][n]] = entry[2][n + 1]
  end
  if fields.kind == 'reclaimed' then
    for _, name in ipairs({ 'lease', 'tenant', 'holder', 'class', 'engine', 'age_ms' }) do
      reply[#reply + 1] = fields[name] or ''
    end
  end
end
if #entries > 0 then
  redis.call('HSET', meta, 'reported', entries[#entries][1])
end
return reply
