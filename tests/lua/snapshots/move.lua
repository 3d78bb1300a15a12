#!lua
--[[
  move: take a live lease from its engine to another one, all other places kept.

  For a request whose engine could not be reached: the permit stays the same, only its engine place moves.
  A lease that is gone is not revived. The class does not change.
  Cost: O(E log N + D log N) for E candidate engines, N live and D <= 32 overdue leases.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant
    2  limits  hash     engine:E
    3  total   zset     lease -> expiry on the lease clock, ms
    4  record  hash     the facts of this lease
    5  events  stream   what was reclaimed

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  lease        string
    5+ engines      string   the candidates, best first

  RETURNS
    MOVED  epoch  grant  engine
    FULL   epoch  grant  pool  in_use  limit    no candidate has room; the lease stays where it was
    GONE   epoch  grant
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

local meta, limits, total, record, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, engines = ARGV[4], { unpack(ARGV, 5) }

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
settle(fleet, events, 32)

local expiry = redis.call('ZSCORE', total, lease)
local engine = redis.call('HGET', record, 'engine')
if not expiry or tonumber(expiry) <= fleet.now or not engine then
  return { 'GONE', fleet.epoch, fleet.grant }
end
local picked, full = pick_engine(fleet, limits, engines, {})
if not picked then
  return { 'FULL', fleet.epoch, fleet.grant, 'engine:' .. full.name, full.live, full.limit }
end
redis.call('ZREM', fleet.prefix .. 'pool:engine:' .. engine, lease)
redis.call('ZADD', fleet.prefix .. 'pool:engine:' .. picked.name, expiry, lease)
redis.call('HSET', record, 'engine', picked.name)
return { 'MOVED', fleet.epoch, fleet.grant, picked.name }
