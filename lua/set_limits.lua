#!lua flags=allow-oom
--[[
  set_limits: write limits of one fleet, in one of three ways.

  seed     only fields that have no value yet: what a config file may do.
  set      always; each change goes to the event stream with who, old and new value.
  restore  what a live gateway last saw, after Redis lost its data: unless another one saw newer, and
           without the fields that somebody has set since.
  Whoever waits and fits now is granted at once. Nobody is cut by a lower limit.
  Idempotent. Cost: O(F) for F fields, and a dispatch.

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
    7  provisional_ms  integer  how long a lease lasts that is handed on
    8+ fields       string   two each: field, value (empty: no value of its own, the default holds)

  RETURNS
    LIMITED  epoch  grant  changed
]]

-- @include read_clock
-- @include open_fleet
-- @include save_fleet
-- @include named
-- @include note
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

local meta, limits, events, set_at = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local mode, who, seen = ARGV[4], ARGV[5], tonumber(ARGV[6])
local provisional_ms, fields = tonumber(ARGV[7]), 8

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
if mode == 'restore' then
  if seen <= (tonumber(redis.call('HGET', meta, 'limits_seen')) or 0) then
    save_fleet(fleet)
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
      note(events, 'kind who field old new', { 'limit_' .. mode, who, field, old or '', new })
    end
  end
end
if changed > 0 then
  refresh_line(fleet, limits, 256, 1)
  dispatch(fleet, limits, provisional_ms, 128)
end
save_fleet(fleet)
return { 'LIMITED', fleet.epoch, fleet.grant, changed }
