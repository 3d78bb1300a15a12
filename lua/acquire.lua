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
    1  meta  hash  epoch, clock, last, learning_until, grant, ticket; its name gives the fleet's prefix

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

-- @include read_clock
-- @include tree
-- @include write_record

local meta = KEYS[1]
local nonce, tick_ms, learning_ms, provisional_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local lease, holder, tenant, request_id = ARGV[5], ARGV[6], ARGV[7], ARGV[8]
local patience_ms, engine_count, candidates = ARGV[9], ARGV[10], 11

local call, prefix = redis.call, string.sub(meta, 1, -5)
local limits, pools, waiting = prefix .. 'limits', prefix .. 'pool:', prefix .. 'line:waiting'
local total, record = pools .. 'total', prefix .. 'lease:' .. lease
local epoch, number, now, clock, wall, wall_text, left_ms, moved =
  read_clock(meta, nonce, tick_ms, learning_ms)

local prefixes = candidates + engine_count
local engines, warm, wanted = {}, nil, 'cold'
for n = candidates, prefixes - 1 do
  engines[#engines + 1] = 'engine:' .. ARGV[n]
end
if prefixes <= #ARGV then
  -- Warm is any engine that is known to hold one of the prefixes.
  for n = 1, #engines do
    local key = prefix .. 'evidence:' .. ARGV[candidates + n - 1]
    for _, expiry in ipairs(call('ZMSCORE', key, unpack(ARGV, prefixes))) do
      if expiry and tonumber(expiry) > now then
        warm, wanted = warm or {}, 'warm'
        warm[n] = true
      end
    end
  end
end

-- Mostly a lease is new, nobody waits, nothing ran out and every pool has room: that is done here, without
-- a table, a function or a command that it does not need. Whatever is not so is left to what stands below.
-- No write before every pool has room: Lua does not roll back.
local overdue, found = call('ZCOUNT', total, '-inf', clock), nil
local quiet = overdue + left_ms + call('EXISTS', record, waiting) == 0
if quiet then
  local of_tenant, cold, of_engine, least = 'tenant:' .. tenant, pools .. 'cold', nil, nil
  found = call('HMGET', limits, 'total', 'cold', 'tenant_default', 'shadow', of_tenant, unpack(engines))
  for n = 1, #engines do
    if not warm or warm[n] then
      local pool, limit = pools .. engines[n], found[n + 5] and tonumber(found[n + 5]) or math.huge
      local in_use = call('ZCARD', pool)
      if in_use >= limit then
        in_use = in_use - call('ZCOUNT', pool, '-inf', clock)
      end
      if in_use < limit and (not least or in_use < least) then
        of_engine, least = n, in_use
      end
    end
  end
  of_tenant = pools .. of_tenant
  local in_tenant, in_total = call('ZCARD', of_tenant), call('ZCARD', total)
  local in_cold = warm and 0 or call('ZCARD', cold)
  if
    least
    and not found[4]
    and in_tenant < (tonumber(found[5] or found[3] or found[1]) or 0)
    and in_total < (tonumber(found[1]) or 0)
    and (warm or in_cold < (tonumber(found[2]) or 0))
  then
    local engine, granted = ARGV[candidates + of_engine - 1], string.format('%d', number + 1)
    local expiry = string.format('%d', now + provisional_ms)
    of_engine = pools .. engines[of_engine]
    call('ZADD', total, expiry, lease)
    call('ZADD', of_tenant, expiry, lease)
    call('ZADD', of_engine, expiry, lease)
    if not warm then
      call('ZADD', cold, expiry, lease)
    end
    write_record(record, request_id, tenant, wanted, engine, holder, wall_text, granted)
    call('HSET', meta, 'clock', clock, 'last', wall_text, 'grant', granted)
    if in_tenant == 16 or in_total == 16 or in_cold == 16 or least == 16 then
      for _, pool in ipairs({ total, of_tenant, of_engine, cold }) do
        if call('ZCARD', pool) == 17 then
          tree(pool)
        end
      end
    end
    return { 'GRANTED', epoch, number + 1, wanted, engine }
  end
end

-- From here on for all others: what is not needed before is not made before.
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
-- @include grant
-- @include waiter
-- @include step_out
-- @include ticks
-- @include put
-- @include stand
-- @include lengthen
-- @include fairest
-- @include dispatch

local fleet = open_fleet(meta, epoch, number, now, clock, wall, wall_text, left_ms, moved)
fleet.overdue = overdue
local demand = {
  lease = lease,
  holder = holder,
  tenant = tenant,
  request_id = request_id,
  engines = { unpack(ARGV, candidates, prefixes - 1) },
  warm = {},
}
for n, name in ipairs(demand.engines) do
  if warm and warm[n] then
    demand.warm[#demand.warm + 1] = name
  end
end
local cap, blocked = caps(fleet, limits, tenant, demand.engines, found), nil

local function queue_or_refuse(others)
  -- A pool that is shut (limit 0 for the tenant) has no next place to wait for.
  if tonumber(patience_ms) > 0 and cap.tenant > 0 then
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
  local looked_at_all = true
  if not quiet then
    settle(fleet, prefix .. 'events', 32)
    looked_at_all = dispatch(fleet, limits, provisional_ms, 128)
    -- The answer to an earlier call may have been lost: give it again rather than grant twice.
    local expiry = redis.call('ZSCORE', total, lease)
    if expiry and tonumber(expiry) > fleet.now then
      local earlier, as, where = unpack(redis.call('HMGET', record, 'grant', 'class', 'engine'))
      if where then
        lengthen(fleet, lease, tenant, where, provisional_ms)
        return { 'GRANTED', epoch, tonumber(earlier) or 0, as, where }
      end
    end
  end
  if left_ms > 0 then
    return { 'LEARNING', epoch, fleet.grant, left_ms }
  elseif not cap then
    return { 'CLOSED', epoch, fleet.grant }
  end
  local others = not quiet and fleet.waiting > 0 and redis.call('HLEN', waiting) or 0
  if others > 0 and redis.call('HEXISTS', waiting, lease) == 1 then
    return { 'QUEUED', epoch, fleet.grant, others }
  end
  local engine, class
  engine, class, blocked = seat(fleet, limits, cap, demand)
  -- Whoever still waits could not be granted just now. Of those not looked at, this tenant's go first.
  local queue = prefix .. 'line:queue:' .. wanted .. ':' .. tenant
  if engine and (looked_at_all or redis.call('EXISTS', queue) == 0) then
    return { 'GRANTED', epoch, grant(fleet, demand, engine, class, provisional_ms), class, engine }
  end
  blocked = blocked or { name = 'line', live = others, limit = others }
  return queue_or_refuse(others)
end

local reply = answer()
save_fleet(fleet)
return reply
