#!lua flags=allow-oom
--[[
  release: give back every place of some leases, and hand them to those who wait.

  One that still stands in line steps out of it.

  Idempotent: a lease that is gone (released before, or reclaimed) is counted as not returned, and nothing
  else can be freed by its id. At most 200 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases, and a dispatch.

  KEYS
    1  meta  hash  epoch, clock, last, learning_until, grant; its name gives the fleet's prefix

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  provisional_ms  integer  how long a lease lasts that is handed on
    5+ leases       string   three each: lease, tenant, engine (empty: unknown)

  RETURNS
    RELEASED  epoch  grant  returned
]]

local meta = KEYS[1]
local nonce, tick_ms, learning_ms, provisional_ms = ARGV[1], ARGV[2], ARGV[3], ARGV[4]
local leases, width = 5, 3

local call, prefix = redis.call, string.sub(meta, 1, -5)
local pools, records = prefix .. 'pool:', prefix .. 'lease:'
local total, cold = pools .. 'total', pools .. 'cold'
local returned, odd = 0, nil
for i = leases, #ARGV, width do
  local lease, tenant, engine = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- Removal is the exactly-once test. What the total has not is looked at below.
  if call('ZREM', total, lease) == 1 then
    call('ZREM', cold, lease)
    call('ZREM', pools .. 'tenant:' .. tenant, lease)
    if call('ZREM', pools .. 'engine:' .. engine, lease) == 0 then
      -- The caller's engine is unknown, or from before a move whose answer is still on its way.
      local known = call('HGET', records .. lease, 'engine')
      call('ZREM', pools .. 'engine:' .. (known or engine), lease)
    end
    call('DEL', records .. lease)
    returned = returned + 1
  else
    odd = odd or {}
    odd[#odd + 1] = i
  end
end
local waiting = call('HLEN', prefix .. 'line:waiting')
if waiting == 0 and not odd then
  -- Nothing depends on the time: the clock is left to whoever ticks or acquires. One that is no number makes
  -- the count an error, which is not 0.
  local found = call('HMGET', meta, 'clock', 'grant', 'epoch')
  local clock, epoch = found[1], found[3]
  if clock and epoch and redis.pcall('ZCOUNT', total, '-inf', clock) == 0 then
    return { 'RELEASED', epoch, tonumber(found[2]) or 0, returned }
  end
end

-- From here on for all others: what is not needed before is not made before.
-- @include read_clock
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

local limits = prefix .. 'limits'
local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
fleet.waiting, fleet.freed = waiting, {}
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
  if leave(prefix, lease, tenant, known or engine) then
    returned = returned + 1
  else
    local left = waiting > 0 and step_out(fleet, lease)
    fleet.freed[left or tenant] = left and 'any' or fleet.freed[tenant]
  end
end
settle(fleet, prefix .. 'events', 32)
dispatch(fleet, limits, provisional_ms, 128)
save_fleet(fleet)
return { 'RELEASED', fleet.epoch, fleet.grant, returned }
