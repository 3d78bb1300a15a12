#!lua flags=allow-oom
--[[
  release: give back every place of some leases, and hand them to those who wait.

  One that still stands in line steps out of it.

  Idempotent: a lease that is gone (released before, or reclaimed) is counted as not returned, and nothing
  else can be freed by its id. At most 200 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases, and a dispatch.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant, freed_at, gap
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
-- @include live
-- @include lives
-- @include caps
-- @include room
-- @include leave
-- @include stand
-- @include settle
-- @include pick_engine
-- @include seat
-- @include waiter
-- @include step_out
-- @include grant
-- @include fairest
-- @include dispatch

local meta, limits, events = KEYS[1], KEYS[2], KEYS[3]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms, leases, width = tonumber(ARGV[4]), 5, 3

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
local returned, longest_ms = 0, 0
for i = leases, #ARGV, width do
  local lease, tenant, engine = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  -- The caller's engine may be unknown, or from before a move whose answer is still on its way.
  local known, acquired_at =
    unpack(redis.call('HMGET', fleet.prefix .. 'lease:' .. lease, 'engine', 'acquired_at'))
  if known and engine ~= '' and engine ~= known then
    redis.call('ZREM', fleet.prefix .. 'pool:engine:' .. engine, lease)
  end
  if leave(fleet.prefix, lease, tenant, known or engine) then
    returned = returned + 1
    longest_ms = math.max(longest_ms, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    stand(fleet, limits, tenant)
  else
    local left = step_out(fleet, lease)
    if left then
      stand(fleet, limits, left)
    end
  end
end
if returned > 0 then
  -- How often a place comes free, for those who are told when to come back. While all are taken one comes
  -- free at least once per hold; what is longer was idle time, which says nothing of a full fleet.
  local freed_at, gap = unpack(redis.call('HMGET', meta, 'freed_at', 'gap'))
  freed_at, gap = tonumber(freed_at), tonumber(gap)
  redis.call('HSET', meta, 'freed_at', fleet.now)
  if freed_at then
    local since = math.min(fleet.now - freed_at, longest_ms, 60000) / returned
    redis.call('HSET', meta, 'gap', string.format('%.0f', gap and gap + (since - gap) / 8 or since))
  end
end
settle(fleet, limits, events, 32)
dispatch(fleet, limits, provisional_ms, 128)
return { 'RELEASED', fleet.epoch, fleet.grant, returned }
