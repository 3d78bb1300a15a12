#!lua flags=allow-oom
--[[
  downgrade: give back the cold places of leases that go on; everything else they keep.

  Idempotent: a lease that holds no cold place is passed over. At most 200 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant
    2  cold    zset     lease -> expiry on the lease clock, ms
    3  events  stream   what was reclaimed

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4+ leases       string

  RETURNS
    DOWNGRADED  epoch  grant  given_back
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

local meta, cold, events = KEYS[1], KEYS[2], KEYS[3]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local leases = { unpack(ARGV, 4) }

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
settle(fleet, events, 32)
local given_back = #leases > 0 and redis.call('ZREM', cold, unpack(leases)) or 0
return { 'DOWNGRADED', fleet.epoch, fleet.grant, given_back }
