#!lua flags=allow-oom
--[[
  downgrade: give back the cold places of leases that go on; everything else they keep.

  Idempotent: a lease that holds no cold place is passed over. At most 200 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant
    2  limits  hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, shadow
    3  cold    zset     lease -> expiry on the lease clock, ms
    4  events  stream   what was reclaimed

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  provisional_ms  integer  how long a lease lasts that is handed on
    5+ leases       string

  RETURNS
    DOWNGRADED  epoch  grant  given_back
]]

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

local meta, limits, cold, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms, leases = tonumber(ARGV[4]), { unpack(ARGV, 5) }

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
settle(fleet, events, 32)
local given_back = #leases > 0 and redis.call('ZREM', cold, unpack(leases)) or 0
dispatch(fleet, limits, provisional_ms, 128)
save_fleet(fleet)
return { 'DOWNGRADED', fleet.epoch, fleet.grant, given_back }
