#!lua flags=allow-oom
--[[
  tick: renew everything one gateway runs on this fleet, and say what Redis did not know of.

  Adds, it does not only update: work that runs must be counted, so a lease that is missing is rebuilt
  from its facts. That is the whole recovery protocol. Idempotent. At most 500 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant
    2  total     zset     lease -> expiry on the lease clock, ms
    3  cold      zset     the same, cold places only
    4  gateways  zset     holder -> session expiry
    5  events    stream   what was reclaimed and re-asserted

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  ttl_ms       integer  how long each lease lasts from now
    5  holder       string   name~nonce of the gateway process
    6+ leases       string   nine each: lease, request_id, tenant, class, engine, phase, acquired_at
                             (Unix ms), cold (1: the cold place is still held), news (1: the phase changed)

  RETURNS
    TICKED  epoch  grant  clock  learning_ms  gateways  missing ...    the leases that had to be added
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

local meta, total, cold, gateways, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, tick_ms, learning_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local holder, leases, width = ARGV[5], 6, 9

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
redis.call('HSET', meta, 'tick_ms', tick_ms)

-- A gateway that missed three ticks counts as gone; its name may be many incarnations old.
redis.call('ZADD', gateways, fleet.now + 3 * tick_ms, holder)
local stale = redis.call('ZRANGEBYSCORE', gateways, '-inf', fleet.now, 'LIMIT', 0, 32)
if #stale > 0 then
  redis.call('ZREM', gateways, unpack(stale))
end

local ids, records, members = {}, {}, {}
local expiry = fleet.now + ttl_ms
local function place(pool, lease)
  local scored = members[pool] or {}
  scored[#scored + 1] = expiry
  scored[#scored + 1] = lease
  members[pool] = scored
end
for i = leases, #ARGV, width do
  local lease = ARGV[i]
  ids[#ids + 1] = lease
  records[#records + 1] = fleet.prefix .. 'lease:' .. lease
  place(total, lease)
  place(fleet.prefix .. 'pool:tenant:' .. ARGV[i + 2], lease)
  if ARGV[i + 7] == '1' then
    place(cold, lease)
  end
end

local reply = { 'TICKED', fleet.epoch, fleet.grant, fleet.now, fleet.learning_ms, 0 }
if #ids > 0 then
  local scores = redis.call('ZMSCORE', total, unpack(ids))
  for n, lease in ipairs(ids) do
    -- Overdue is missing too: its place may have been granted to somebody else since.
    if not scores[n] or tonumber(scores[n]) <= fleet.now then
      reply[#reply + 1] = lease
      redis.call(
        'XADD',
        events,
        'MAXLEN',
        '~',
        10000,
        '*',
        'kind',
        'reasserted',
        'lease',
        lease,
        'holder',
        holder
      )
    end
  end
  for n, record in ipairs(records) do
    local i = leases + (n - 1) * width
    -- Where they differ, the lease has moved and the caller sent this before it heard: on one engine only.
    local engine = redis.call('HGET', record, 'engine') or ARGV[i + 4]
    place(fleet.prefix .. 'pool:engine:' .. engine, ids[n])
    -- A whole record has eight fields. One that lost any of them is written again.
    if redis.call('HLEN', record) < 8 then
      redis.call(
        'HSET',
        record,
        'request_id',
        ARGV[i + 1],
        'tenant',
        ARGV[i + 2],
        'class',
        ARGV[i + 3],
        'engine',
        engine,
        'holder',
        holder,
        'phase',
        ARGV[i + 5],
        'acquired_at',
        ARGV[i + 6]
      )
      redis.call('HSETNX', record, 'grant', 0)
    elseif ARGV[i + 8] == '1' then
      redis.call('HSET', record, 'phase', ARGV[i + 5])
    end
  end
  for pool, scored in pairs(members) do
    redis.call('ZADD', pool, unpack(scored))
  end
end

settle(fleet, events, 32)
reply[6] = live(gateways, fleet.now)
return reply
