#!lua
--[[
  acquire: grant one permit in every pool of its demand, or stand it in line, or say which pool is full.

  Idempotent: the same lease id, asked for again, gets its first answer while it lives, or its place in line;
  its provisional time begins anew.
  Nobody overtakes: those in line who can be granted are granted first. A refusal changes nothing.
  The class is decided here, on the engine's own evidence: warm where an engine is known to hold one of
  the prefixes, cold everywhere else. The first lease is provisional: it is short until the first tick.
  Cost: O(E (log N + P) + D log N) for E engines, P prefixes, N live and D <= 32 overdue leases; a dispatch.

  KEYS
    1  meta          hash     epoch, clock, last, learning_until, grant, ticket
    2  limits        hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, line_max, shadow, ...
    3  total         zset     lease -> expiry on the lease clock, ms
    4  record        hash     the facts of this lease
    5  events        stream   what was reclaimed
    6  waiting       hash     lease -> the demand of one who stands in line

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
-- @include save_fleet
-- @include live
-- @include caps
-- @include full
-- @include pick_engine
-- @include seat
-- @include grant

local meta, limits, total, record, events, waiting = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
local nonce, tick_ms, learning_ms, provisional_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lease, holder, tenant, request_id = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local patience_ms, engine_count, candidates = tonumber(ARGV[9]), tonumber(ARGV[10]), 11

local demand = {
  lease = lease,
  holder = holder,
  tenant = tenant,
  request_id = request_id,
  engines = { unpack(ARGV, candidates, candidates + engine_count - 1) },
  warm = {},
}
local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
local cap = caps(fleet, limits, tenant, demand.engines)
local wanted, prefixes = 'cold', candidates + engine_count
if prefixes <= #ARGV then
  -- Warm is any engine that is known to hold one of the prefixes.
  for _, name in ipairs(demand.engines) do
    local evidence = redis.call('ZMSCORE', fleet.prefix .. 'evidence:' .. name, unpack(ARGV, prefixes))
    for n = 1, #evidence do
      if evidence[n] and tonumber(evidence[n]) > fleet.now then
        demand.warm[#demand.warm + 1], wanted = name, 'warm'
        break
      end
    end
  end
end

-- Mostly a lease is new, nobody waits and nothing ran out. No write before every pool has room: Lua does not
-- roll back.
fleet.overdue = redis.call('ZCOUNT', total, '-inf', fleet.clock)
local engine, class, blocked
local quiet = cap and fleet.overdue + fleet.learning_ms + redis.call('EXISTS', record, waiting) == 0
if quiet then
  engine, class, blocked = seat(fleet, limits, cap, demand)
  if engine then
    local number = grant(fleet, demand, engine, class, provisional_ms)
    save_fleet(fleet)
    return { 'GRANTED', fleet.epoch, number, class, engine }
  end
end

-- From here on for all others: what is not needed before is not made before.
-- @include leave
-- @include named
-- @include note
-- @include settle
-- @include waiter
-- @include step_out
-- @include ticks
-- @include put
-- @include stand
-- @include lengthen
-- @include fairest
-- @include dispatch

local function queue_or_refuse(others)
  -- A pool that is shut (limit 0 for the tenant) has no next place to wait for.
  if patience_ms > 0 and cap.tenant > 0 then
    local queues = fleet.prefix .. 'line:queue:'
    local line_max, own_max = unpack(redis.call('HMGET', limits, 'line_max', 'line_max_per_tenant'))
    line_max, own_max = tonumber(line_max) or 0, tonumber(own_max) or 0
    local own = redis.call('ZCARD', queues .. 'warm:' .. tenant)
      + redis.call('ZCARD', queues .. 'cold:' .. tenant)
    if others < line_max and own < own_max then
      local words = {
        holder,
        tenant,
        wanted,
        string.format('%.0f', fleet.now + patience_ms),
        fleet.clock,
        request_id,
        table.concat(demand.engines, ','),
        #demand.warm > 0 and table.concat(demand.warm, ',') or '-',
      }
      redis.call('HSET', waiting, lease, table.concat(words, ' '))
      put(queues .. wanted .. ':' .. tenant, redis.call('HINCRBY', meta, 'ticket', 1), lease)
      stand(fleet, limits, tenant)
      if own == 0 then
        put(fleet.prefix .. 'line:tenants', fleet.clock, tenant)
      end
      return { 'QUEUED', fleet.epoch, fleet.grant, others + 1 }
    end
    local mine = others < line_max
    blocked = { name = 'line', live = mine and own or others, limit = mine and own_max or line_max }
  end
  return { 'FULL', fleet.epoch, fleet.grant, blocked.name, blocked.live, blocked.limit, others }
end

local function answer()
  if quiet then
    return queue_or_refuse(0)
  end
  settle(fleet, events, 32)
  local looked_at_all = dispatch(fleet, limits, provisional_ms, 128)
  -- The answer to an earlier call may have been lost: give it again rather than grant twice.
  local expiry = redis.call('ZSCORE', total, lease)
  if expiry and tonumber(expiry) > fleet.now then
    local number, as, where = unpack(redis.call('HMGET', record, 'grant', 'class', 'engine'))
    if where then
      lengthen(fleet, lease, tenant, where, provisional_ms)
      return { 'GRANTED', fleet.epoch, tonumber(number) or 0, as, where }
    end
  end
  if fleet.learning_ms > 0 then
    return { 'LEARNING', fleet.epoch, fleet.grant, fleet.learning_ms }
  elseif not cap then
    return { 'CLOSED', fleet.epoch, fleet.grant }
  end
  local others = fleet.waiting > 0 and redis.call('HLEN', waiting) or 0
  if others > 0 and redis.call('HEXISTS', waiting, lease) == 1 then
    return { 'QUEUED', fleet.epoch, fleet.grant, others }
  end
  engine, class, blocked = seat(fleet, limits, cap, demand)
  -- Whoever still waits could not be granted just now. Of those not looked at, this tenant's go first.
  local queue = fleet.prefix .. 'line:queue:' .. wanted .. ':' .. tenant
  if engine and (looked_at_all or redis.call('EXISTS', queue) == 0) then
    local number = grant(fleet, demand, engine, class, provisional_ms)
    return { 'GRANTED', fleet.epoch, number, class, engine }
  end
  blocked = blocked or { name = 'line', live = others, limit = others }
  return queue_or_refuse(others)
end

local reply = answer()
save_fleet(fleet)
return reply
