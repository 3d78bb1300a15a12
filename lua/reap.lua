#!lua flags=allow-oom
--[[
  reap: take back the leases of holders that died, give their places to those who wait, make the sets agree.

  Says what was reclaimed.

  Any number of reapers may run and none is needed for correctness: overdue leases are counted by nobody.
  Whoever settled a lease wrote it to the event stream; each such entry is handed to exactly one reaper.
  Idempotent. Cost: O(128 log N) per pool and O(log N) per record of this call.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant
    2  limits    hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, shadow
    3  total     zset     lease -> expiry on the lease clock, ms
    4  cold      zset     the same, cold places only
    5  events    stream   what was reclaimed
    6  reported  string   the last event that a reaper was handed; outlives an epoch, as the events do

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  ttl_ms       integer  no expiry can be further away than this
    5  provisional_ms  integer  how long a lease lasts that is handed on
    6  pool_count   integer  how many of the rest are pools
    7+ suspects     string   pools to hold against the total (tenant:T, engine:E), then ids of leases

  RETURNS
    REAPED  epoch  grant  settled  drift  more  then lease, tenant, holder, class, engine, age_ms of each ...
]]

-- @include read_clock
-- @include open_fleet
-- @include save_fleet
-- @include leave
-- @include named
-- @include note
-- @include settle
-- @include live
-- @include caps
-- @include full
-- @include pick_engine
-- @include seat
-- @include write_record
-- @include grant
-- @include waiter
-- @include step_out
-- @include ticks
-- @include tree
-- @include put
-- @include stand
-- @include fairest
-- @include dispatch
-- @include refresh_line
-- @include lives
-- @include mend_pool

local meta, limits, total, cold, events, reported = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local nonce, tick_ms, learning_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local provisional_ms, pool_count, suspects = tonumber(ARGV[5]), tonumber(ARGV[6]), 7

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
local settled = settle(fleet, events, 128)
refresh_line(fleet, limits, 64, 32)
dispatch(fleet, limits, provisional_ms, 128)

local drift = mend_pool(fleet, total, total, ttl_ms) + mend_pool(fleet, cold, total, ttl_ms)
for i = suspects, #ARGV do
  if i < suspects + pool_count then
    drift = drift + mend_pool(fleet, fleet.prefix .. 'pool:' .. ARGV[i], total, ttl_ms)
  else
    -- Gone from both since the caller looked is the normal end of a lease; one without the other is drift.
    local record = fleet.prefix .. 'lease:' .. ARGV[i]
    local tenant, engine = unpack(redis.call('HMGET', record, 'tenant', 'engine'))
    if redis.call('EXISTS', record) == 1 and not redis.call('ZSCORE', total, ARGV[i]) then
      drift = drift + 1
      if not lives(fleet, ARGV[i]) then
        leave(fleet.prefix, ARGV[i], tenant, engine)
      end
    end
  end
end
for _, lease in ipairs(redis.call('ZRANGE', total, 0, 127)) do
  -- Its holder's tick adds what is missing; without a holder the lease is settled like any other.
  local tenant, engine = unpack(redis.call('HMGET', fleet.prefix .. 'lease:' .. lease, 'tenant', 'engine'))
  if
    not (tenant and redis.call('ZSCORE', fleet.prefix .. 'pool:tenant:' .. tenant, lease))
    or not (engine and redis.call('ZSCORE', fleet.prefix .. 'pool:engine:' .. engine, lease))
  then
    drift = drift + 1
  end
end

local last = redis.call('GET', reported)
local entries = redis.call('XRANGE', events, last and '(' .. last or '-', '+', 'COUNT', 200)
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
  redis.call('SET', reported, entries[#entries][1])
end
save_fleet(fleet)
return reply
