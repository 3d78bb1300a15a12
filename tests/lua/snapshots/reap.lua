#!lua flags=allow-oom
--[[
  reap: take back the leases of holders that died, make the sets agree, and hand out what was reclaimed.

  Any number of reapers may run and none is needed for correctness: overdue leases are counted by nobody.
  Whoever settled a lease wrote it to the event stream; each such entry is handed to exactly one reaper.
  Idempotent. Cost: O(128 log N) per pool and O(log N) per record of this call.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant
    2  total     zset     lease -> expiry on the lease clock, ms
    3  cold      zset     the same, cold places only
    4  gateways  zset     holder -> session expiry
    5  events    stream   what was reclaimed
    6  reported  string   the last event that a reaper was handed; outlives an epoch, as the events do

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
-- lives(gateways, lease, now) -> boolean. whether the gateway that made this lease id still ticks
local function lives(gateways, lease, now)
  local holder = string.match(lease, '^(.*)~[^~]*$')
  local session = holder and redis.call('ZSCORE', gateways, holder)
  return session and tonumber(session) > now or false
end
-- mend_pool(fleet, pool, total, gateways, ttl_ms) -> drift. makes one pool agree with the total, boundedly
--
-- Drops what is overdue, what no lease of the total accounts for, and cuts expiries that no tick can have
-- written. A member whose gateway still ticks is left to it: it re-asserts what it runs, and only it knows.
-- Ghosts are never renewed, so they are the first by score and a bounded look finds them.
local function mend_pool(fleet, pool, total, gateways, ttl_ms)
  local drift = 0
  -- Those of the total are settled, never just dropped: each of them is to be reported.
  local overdue = pool == total and {} or redis.call('ZRANGEBYSCORE', pool, '-inf', fleet.now, 'LIMIT', 0, 64)
  if #overdue > 0 then
    redis.call('ZREM', pool, unpack(overdue))
  end
  for _, lease in ipairs(redis.call('ZRANGEBYSCORE', pool, fleet.now + ttl_ms + 1, '+inf', 'LIMIT', 0, 64)) do
    redis.call('ZADD', pool, fleet.now + ttl_ms, lease)
    drift = drift + 1
  end
  local members = pool == total and {} or redis.call('ZRANGE', pool, 0, 127)
  local scores = #members > 0 and redis.call('ZMSCORE', total, unpack(members)) or {}
  for n, lease in ipairs(members) do
    if not scores[n] then
      drift = drift + 1
      if not lives(gateways, lease, fleet.now) then
        redis.call('ZREM', pool, lease)
      end
    end
  end
  return drift
end

local meta, total, cold, gateways, events, reported = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6]
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
    if redis.call('EXISTS', record) == 1 and not redis.call('ZSCORE', total, ARGV[i]) then
      drift = drift + 1
      if not lives(gateways, ARGV[i], fleet.now) then
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
return reply
