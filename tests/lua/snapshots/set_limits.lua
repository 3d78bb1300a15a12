#!lua flags=allow-oom
--[[
  set_limits: write limits of one fleet, in one of three ways.

  seed     only fields that have no value yet: what a config file may do.
  set      always; each change goes to the event stream with who, old and new value.
  restore  what a live gateway last saw, after Redis lost its data: unless another one saw newer, and
           without the fields that somebody has set since.
  Idempotent. Cost: O(F) for F fields.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant, limits_seen
    2  limits  hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, line_max, ...
    3  events  stream   limit changes
    4  set_at  hash     field -> lease clock at which it was last set

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer  0 for a fleet that is known to be new: it starts without learning
    4  mode         string   seed, set or restore
    5  who          string   for the event stream
    6  seen         integer  the lease clock at which these values were read (restore only)
    7+ fields       string   two each: field, value

  RETURNS
    LIMITED  epoch  grant  changed
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

local meta, limits, events, set_at = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local mode, who, seen, fields = ARGV[4], ARGV[5], tonumber(ARGV[6]), 7

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
if mode == 'restore' then
  if seen <= (tonumber(redis.call('HGET', meta, 'limits_seen')) or 0) then
    return { 'LIMITED', fleet.epoch, fleet.grant, 0 }
  end
  redis.call('HSET', meta, 'limits_seen', seen)
end

local changed = 0
for i = fields, #ARGV, 2 do
  local field, new = ARGV[i], ARGV[i + 1]
  local old = redis.call('HGET', limits, field)
  local write = old ~= new
  if mode == 'seed' then
    write = not old
  elseif mode == 'set' then
    redis.call('HSET', set_at, field, fleet.now)
  elseif (tonumber(redis.call('HGET', set_at, field)) or 0) >= seen then
    write = false
  end
  if write then
    redis.call('HSET', limits, field, new)
    changed = changed + 1
    if mode ~= 'seed' then
      redis.call(
        'XADD',
        events,
        'MAXLEN',
        '~',
        10000,
        '*',
        'kind',
        'limit_' .. mode,
        'who',
        who,
        'field',
        field,
        'old',
        old or '',
        'new',
        new
      )
    end
  end
end
return { 'LIMITED', fleet.epoch, fleet.grant, changed }
