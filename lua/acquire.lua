#!lua
--[[
  acquire: grant one permit in every pool of its demand, or stand it in line, or say which pool is full.

  Idempotent: the same lease id, asked for again, gets its first answer while it lives, or its place in line.
  Nobody overtakes: those in line who can be granted are granted first. A refusal changes nothing.
  The class is decided here, on the engine's own evidence: warm where an engine is known to hold one of
  the prefixes, cold everywhere else. The first lease is provisional: it is short until the first tick.
  Cost: O(E (log N + P) + D log N) for E engines, P prefixes, N live and D <= 32 overdue leases; a dispatch.

  KEYS
    1  meta          hash     epoch, clock, last, learning_until, grant, ticket
    2  limits        hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, line_max, shadow, ...
    3  total         zset     lease -> expiry on the lease clock, ms
    4  tenant_pool   zset     the same, this tenant only
    5  record        hash     the facts of this lease
    6  events        stream   what was reclaimed
    7  waiting       hash     lease -> the demand of one who stands in line

  ARGV
    1  nonce           string   the epoch to start when there is none
    2  tick_ms         integer
    3  learning_ms     integer
    4  provisional_ms  integer  how long the first lease lasts
    5  lease           string   new for every demand; never reused
    6  holder          string   name~nonce of the gateway process
    7  tenant          string
    8  request_id      string
    9  patience_ms     integer  how long it would stand in line; 0: not at all
    10 engine_count    integer  how many of the rest are engines
    11+ candidates     string   the engines, then the prefixes that make the demand warm

  RETURNS
    GRANTED   epoch  grant  class  engine
    QUEUED    epoch  grant  waiting                                  it stands in line, with so many
    FULL      epoch  grant  pool  in_use  limit  waiting             one full pool, or `line`; most specific
    LEARNING  epoch  grant  left_ms                                  holders get time to re-assert first
    CLOSED    epoch  grant                                           the fleet has no limits
]]

-- @include open_fleet
-- @include live
-- @include lives
-- @include caps
-- @include room
-- @include leave
-- @include stand
-- @include named
-- @include note
-- @include settle
-- @include warm_engines
-- @include pick_engine
-- @include seat
-- @include waiter
-- @include step_out
-- @include grant
-- @include fairest
-- @include dispatch

local meta, limits, total, tenant_pool, record, events, waiting =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms = tonumber(ARGV[4])
local lease, holder, tenant, request_id = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local patience_ms, engine_count, candidates = tonumber(ARGV[9]), tonumber(ARGV[10]), 11
local engines, prefixes = {}, {}
for i = candidates, #ARGV do
  if i < candidates + engine_count then
    engines[#engines + 1] = ARGV[i]
  else
    prefixes[#prefixes + 1] = ARGV[i]
  end
end

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
settle(fleet, limits, events, 32)
local looked_at_all = dispatch(fleet, limits, provisional_ms, 128)

-- The answer to an earlier call may have been lost: give it again rather than grant twice.
local expiry = redis.call('ZSCORE', total, lease)
if expiry and tonumber(expiry) > fleet.now then
  local number, class, engine = unpack(redis.call('HMGET', record, 'grant', 'class', 'engine'))
  if engine then
    return { 'GRANTED', fleet.epoch, tonumber(number) or 0, class, engine }
  end
end
local cap = caps(limits, tenant)
local in_line = fleet.waiting > 0 and redis.call('HLEN', waiting) or 0
if fleet.learning_ms > 0 then
  return { 'LEARNING', fleet.epoch, fleet.grant, fleet.learning_ms }
elseif not cap then
  return { 'CLOSED', fleet.epoch, fleet.grant }
elseif in_line > 0 and redis.call('HEXISTS', waiting, lease) == 1 then
  return { 'QUEUED', fleet.epoch, fleet.grant, in_line }
end

-- No write before every pool has room: Lua does not roll back.
local demand = { lease = lease, holder = holder, tenant = tenant, request_id = request_id }
local warm = warm_engines(fleet, engines, prefixes)
local wanted = #warm > 0 and 'warm' or 'cold'
local queue = fleet.prefix .. 'line:queue:' .. wanted .. ':' .. tenant
local engine, class, full
local in_use = live(tenant_pool, fleet.now)
if room(cap, 'tenant', in_use) <= 0 then
  full = { name = 'tenant:' .. tenant, live = in_use, limit = cap.tenant }
end
in_use = live(total, fleet.now)
if not full and room(cap, 'total', in_use) <= 0 then
  full = { name = 'total', live = in_use, limit = cap.total }
end
if not full then
  engine, class, full = seat(fleet, limits, cap, engines, warm)
end
-- Whoever still waits could not be granted just now. Of those who were not looked at, this tenant's go first.
if not full and (looked_at_all or redis.call('EXISTS', queue) == 0) then
  local number = grant(fleet, demand, engine, class, provisional_ms)
  return { 'GRANTED', fleet.epoch, number, class, engine }
end

full = full or { name = 'line', live = in_line, limit = in_line }
local line_max, tenant_max = unpack(redis.call('HMGET', limits, 'line_max', 'line_max_per_tenant'))
line_max, tenant_max = tonumber(line_max) or 0, tonumber(tenant_max) or 0
-- A pool that is shut (limit 0 for the tenant) has no next place to wait for.
if patience_ms > 0 and cap.tenant > 0 then
  local own = redis.call('ZCARD', fleet.prefix .. 'line:queue:warm:' .. tenant)
    + redis.call('ZCARD', fleet.prefix .. 'line:queue:cold:' .. tenant)
  if in_line < line_max and own < tenant_max then
    local words = {
      holder,
      tenant,
      wanted,
      string.format('%.0f', fleet.now + patience_ms),
      string.format('%.0f', fleet.now),
      request_id,
      table.concat(engines, ','),
      #warm > 0 and table.concat(warm, ',') or '-',
    }
    redis.call('HSET', waiting, lease, table.concat(words, ' '))
    redis.call('ZADD', queue, redis.call('HINCRBY', meta, 'ticket', 1), lease)
    stand(fleet, limits, tenant)
    return { 'QUEUED', fleet.epoch, fleet.grant, in_line + 1 }
  end
  full = {
    name = 'line',
    live = in_line < line_max and own or in_line,
    limit = in_line < line_max and tenant_max or line_max,
  }
end
return { 'FULL', fleet.epoch, fleet.grant, full.name, full.live, full.limit, in_line }
