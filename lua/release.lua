#!lua flags=allow-oom
--[[
  release: give back every place of some leases, and hand them to those who wait.

  One that still stands in line steps out of it.

  Idempotent: a lease that is gone (released before, or reclaimed) is counted as not returned, and nothing
  else can be freed by its id. At most 200 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases, and a dispatch.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant
    2  limits  hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, shadow
    3  events  stream   what was reclaimed

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  provisional_ms  integer  how long a lease lasts that is handed on
    5+ leases       string   three each: lease, tenant, engine (empty: unknown)

  RETURNS
    RELEASED  epoch  grant  returned
]]

-- @include open_fleet
-- @include save_fleet

local meta, limits, events = KEYS[1], KEYS[2], KEYS[3]
local nonce, tick_ms, learning_ms, provisional_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local leases, width = 5, 3

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
local pools, records = fleet.prefix .. 'pool:', fleet.prefix .. 'lease:'
local returned, odd = 0, nil
for i = leases, #ARGV, width do
  local lease, tenant, engine = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- Removal is the exactly-once test. What the total has not is looked at below.
  if redis.call('ZREM', pools .. 'total', lease) == 1 then
    redis.call('ZREM', pools .. 'cold', lease)
    redis.call('ZREM', pools .. 'tenant:' .. tenant, lease)
    if redis.call('ZREM', pools .. 'engine:' .. engine, lease) == 0 then
      -- The caller's engine is unknown, or from before a move whose answer is still on its way.
      local known = redis.call('HGET', records .. lease, 'engine')
      redis.call('ZREM', pools .. 'engine:' .. (known or engine), lease)
    end
    redis.call('DEL', records .. lease)
    returned = returned + 1
  else
    odd = odd or {}
    odd[#odd + 1] = i
  end
end
fleet.overdue = redis.call('ZCOUNT', pools .. 'total', '-inf', fleet.clock)
fleet.waiting = redis.call('HLEN', fleet.prefix .. 'line:waiting')
if not odd and fleet.overdue + fleet.waiting == 0 then
  save_fleet(fleet)
  return { 'RELEASED', fleet.epoch, fleet.grant, returned }
end

-- From here on for all others: what is not needed before is not made before.
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
-- @include fairest
-- @include dispatch

fleet.freed = {}
for i = leases, #ARGV, width do
  fleet.freed[ARGV[i + 1]] = 'places'
end
-- Released before, or reclaimed, or half deleted; or it still stands in line.
for _, i in ipairs(odd or {}) do
  local lease, tenant, engine = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local known = redis.call('HGET', records .. lease, 'engine')
  if known and engine ~= known then
    redis.call('ZREM', pools .. 'engine:' .. engine, lease)
  end
  if leave(fleet.prefix, lease, tenant, known or engine) then
    returned = returned + 1
  else
    local left = fleet.waiting > 0 and step_out(fleet, lease)
    fleet.freed[left or tenant] = left and 'any' or fleet.freed[tenant]
  end
end
settle(fleet, events, 32)
dispatch(fleet, limits, provisional_ms, 128)
save_fleet(fleet)
return { 'RELEASED', fleet.epoch, fleet.grant, returned }
