#!lua
--[[
  acquire: grant one permit in every pool of its demand, or change nothing and say which pool is full.

  Idempotent: the same lease id, asked for again while it lives, gets its first answer.
  The class is decided here, on the engine's own evidence: warm where an engine is known to hold one of
  the prefixes, cold everywhere else. The first lease is provisional: it is short until the first tick.
  Cost: O(E (log N + P) + D log N) for E engines, P prefixes, N live and D <= 32 overdue leases.

  KEYS
    1  meta          hash     epoch, clock, last, learning_until, grant
    2  limits        hash     total, cold, tenant_default, tenant:T, engine:E
    3  total         zset     lease -> expiry on the lease clock, ms
    4  cold          zset     the same, cold places only
    5  tenant_pool   zset     the same, this tenant only
    6  record        hash     the facts of this lease
    7  events        stream   what was reclaimed

  ARGV
    1  nonce           string   the epoch to start when there is none
    2  tick_ms         integer
    3  learning_ms     integer
    4  provisional_ms  integer  how long the first lease lasts
    5  lease           string   new for every demand; never reused
    6  holder          string   name~nonce of the gateway process
    7  tenant          string
    8  request_id      string
    9  engine_count    integer  how many of the rest are engines
    10+ candidates     string   the engines, then the prefixes that make the demand warm

  RETURNS
    GRANTED   epoch  grant  class  engine
    FULL      epoch  grant  pool  in_use  limit    one full pool, most specific first
    LEARNING  epoch  grant  left_ms                nothing is granted before holders had time to re-assert
    CLOSED    epoch  grant                         the fleet has no limits
]]

-- open_fleet(meta, nonce, tick_ms, learning_ms) -> fleet. moves the lease clock, or starts an epoch
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
local function open_fleet(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch, clock, last, learning_until, grant =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'grant'))
  local prefix = string.sub(meta, 1, -5)

  if epoch and clock and last then
    clock, last = tonumber(clock), tonumber(last)
    clock = clock + math.min(math.max(wall - last, 0), 2 * tick_ms)
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    if wall ~= last then
      redis.call('HSET', meta, 'clock', clock, 'last', wall)
    end
  else
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local top = redis.call('ZREVRANGE', prefix .. 'pool:total', 0, 0, 'WITHSCORES')[2]
    clock = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant = nonce, clock + learning_ms, 0
    redis.call(
      'HSET',
      meta,
      'schema',
      1,
      'epoch',
      epoch,
      'clock',
      clock,
      'last',
      wall,
      'grant',
      grant,
      'learning_until',
      learning_until,
      'tick_ms',
      tick_ms
    )
  end

  return {
    prefix = prefix,
    wall = wall,
    now = clock,
    epoch = epoch,
    grant = tonumber(grant) or 0,
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - clock),
  }
end
-- live(pool, now) -> integer. the one way to count: members whose lease is not past, so no reaper is needed
local function live(pool, now)
  return redis.call('ZCOUNT', pool, '(' .. string.format('%.0f', now), '+inf')
end
-- leave(prefix, lease, tenant, engine) -> boolean. gives all places of a lease back; false: it had none
--
-- Removal is the exactly-once test: whoever removes the member returned the capacity, nobody else can.
local function leave(prefix, lease, tenant, engine)
  local removed = redis.call('ZREM', prefix .. 'pool:total', lease)
    + redis.call('ZREM', prefix .. 'pool:cold', lease)
  if tenant and tenant ~= '' then
    removed = removed + redis.call('ZREM', prefix .. 'pool:tenant:' .. tenant, lease)
  end
  if engine and engine ~= '' then
    removed = removed + redis.call('ZREM', prefix .. 'pool:engine:' .. engine, lease)
  end
  redis.call('DEL', prefix .. 'lease:' .. lease)
  return removed > 0
end
-- settle(fleet, events, most) -> integer. drops overdue leases, `most` at a time, into the event stream
--
-- Overdue leases are counted by nobody, so how many are dropped decides only how tidy the sets are; the bound
-- keeps ten thousand holders that died together from making one request wait.
local function settle(fleet, events, most)
  local total = fleet.prefix .. 'pool:total'
  local overdue = redis.call('ZRANGEBYSCORE', total, '-inf', fleet.now, 'LIMIT', 0, most)
  for _, lease in ipairs(overdue) do
    local tenant, engine, holder, class, acquired_at = unpack(
      redis.call(
        'HMGET',
        fleet.prefix .. 'lease:' .. lease,
        'tenant',
        'engine',
        'holder',
        'class',
        'acquired_at'
      )
    )
    leave(fleet.prefix, lease, tenant, engine)
    redis.call(
      'XADD',
      events,
      'MAXLEN',
      '~',
      10000,
      '*',
      'kind',
      'reclaimed',
      'lease',
      lease,
      'tenant',
      tenant or '',
      'holder',
      holder or '',
      'class',
      class or '',
      'engine',
      engine or '',
      'age_ms',
      math.max(0, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    )
  end
  return #overdue
end
-- pick_engine(fleet, limits, engines, prefixes) -> picked, full. the fittest engine with room
--
-- picked = { name, warm } or nil; full = { name, live, limit } of the least loaded engine without room.
-- An engine that is known to hold a prefix of the prompt comes before one that is not; among equals the one
-- with the fewest live permits, then the caller's order.
local function pick_engine(fleet, limits, engines, prefixes)
  local picked, full
  for _, name in ipairs(engines) do
    local in_use = live(fleet.prefix .. 'pool:engine:' .. name, fleet.now)
    local limit = tonumber(redis.call('HGET', limits, 'engine:' .. name)) or math.huge
    if in_use >= limit then
      if not full or in_use < full.live then
        full = { name = name, live = in_use, limit = limit }
      end
    else
      local warm = false
      if #prefixes > 0 then
        local expiries = redis.call('ZMSCORE', fleet.prefix .. 'evidence:' .. name, unpack(prefixes))
        for _, expiry in ipairs(expiries) do
          warm = warm or (expiry and tonumber(expiry) > fleet.now) or false
        end
      end
      if not picked or (warm and not picked.warm) or (warm == picked.warm and in_use < picked.live) then
        picked = { name = name, warm = warm, live = in_use }
      end
    end
  end
  return picked, full
end

local meta, limits, total, cold, tenant_pool, record, events =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms = tonumber(ARGV[4])
local lease, holder, tenant, request_id, engine_count = ARGV[5], ARGV[6], ARGV[7], ARGV[8], tonumber(ARGV[9])
local candidates, engines, prefixes = 10, {}, {}
for i = candidates, #ARGV do
  if i < candidates + engine_count then
    engines[#engines + 1] = ARGV[i]
  else
    prefixes[#prefixes + 1] = ARGV[i]
  end
end

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
settle(fleet, events, 32)

-- The answer to an earlier call may have been lost: give it again rather than grant twice.
local expiry = redis.call('ZSCORE', total, lease)
if expiry and tonumber(expiry) > fleet.now then
  local grant, class, engine = unpack(redis.call('HMGET', record, 'grant', 'class', 'engine'))
  if engine then
    return { 'GRANTED', fleet.epoch, tonumber(grant) or 0, class, engine }
  end
end

if fleet.learning_ms > 0 then
  return { 'LEARNING', fleet.epoch, fleet.grant, fleet.learning_ms }
end

local total_max, cold_max, tenant_default, tenant_max =
  unpack(redis.call('HMGET', limits, 'total', 'cold', 'tenant_default', 'tenant:' .. tenant))
if not total_max then
  return { 'CLOSED', fleet.epoch, fleet.grant }
end
total_max = tonumber(total_max) or 0
cold_max = tonumber(cold_max) or 0
tenant_max = tonumber(tenant_max) or tonumber(tenant_default) or total_max

-- No write before every pool has room: Lua does not roll back. `>=` because a limit may have been lowered.
local in_use = live(tenant_pool, fleet.now)
if in_use >= tenant_max then
  return { 'FULL', fleet.epoch, fleet.grant, 'tenant:' .. tenant, in_use, tenant_max }
end
in_use = live(total, fleet.now)
if in_use >= total_max then
  return { 'FULL', fleet.epoch, fleet.grant, 'total', in_use, total_max }
end
local picked, full = pick_engine(fleet, limits, engines, prefixes)
if not picked then
  return { 'FULL', fleet.epoch, fleet.grant, 'engine:' .. full.name, full.live, full.limit }
end
if not picked.warm then
  in_use = live(cold, fleet.now)
  if in_use >= cold_max then
    return { 'FULL', fleet.epoch, fleet.grant, 'cold', in_use, cold_max }
  end
end

expiry = fleet.now + provisional_ms
redis.call('ZADD', total, expiry, lease)
redis.call('ZADD', tenant_pool, expiry, lease)
redis.call('ZADD', fleet.prefix .. 'pool:engine:' .. picked.name, expiry, lease)
local class = picked.warm and 'warm' or 'cold'
if class == 'cold' then
  redis.call('ZADD', cold, expiry, lease)
end
local grant = redis.call('HINCRBY', meta, 'grant', 1)
redis.call(
  'HSET',
  record,
  'request_id',
  request_id,
  'tenant',
  tenant,
  'class',
  class,
  'engine',
  picked.name,
  'holder',
  holder,
  'phase',
  'granted',
  'acquired_at',
  fleet.wall,
  'grant',
  grant
)
return { 'GRANTED', fleet.epoch, grant, class, picked.name }
