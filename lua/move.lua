#!lua
--[[
  move: take a live lease from its engine to another one, all other places kept.

  For a request whose engine could not be reached: the permit stays the same, only its engine place moves.
  A lease that is gone is not revived. The class does not change.
  Whoever waits for the old engine is granted its place at once.
  Cost: O(E log N + D log N) for E candidate engines, N live and D <= 32 overdue leases, and a dispatch.

  KEYS
    1  meta    hash     epoch, clock, last, learning_until, grant
    2  limits  hash     engine:E, shadow
    3  total   zset     lease -> expiry on the lease clock, ms
    4  record  hash     the facts of this lease
    5  events  stream   what was reclaimed

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  provisional_ms  integer  how long a lease lasts that is handed on
    5  lease        string
    6+ engines      string   the candidates, best first

  RETURNS
    MOVED  epoch  grant  engine
    FULL   epoch  grant  pool  in_use  limit    no candidate has room; the lease stays where it was
    GONE   epoch  grant
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

local meta, limits, total, record, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms, lease, engines = tonumber(ARGV[4]), ARGV[5], { unpack(ARGV, 6) }

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
settle(fleet, events, 32)

local function answer()
  local expiry = redis.call('ZSCORE', total, lease)
  local engine = redis.call('HGET', record, 'engine')
  if not expiry or tonumber(expiry) <= fleet.now or not engine then
    return { 'GONE', fleet.epoch, fleet.grant }
  end
  local name, blocked =
    pick_engine(fleet, limits, caps(fleet, limits, '', engines) or { engines = {} }, engines)
  if not name then
    return { 'FULL', fleet.epoch, fleet.grant, blocked.name, blocked.live, blocked.limit }
  end
  redis.call('ZREM', fleet.prefix .. 'pool:engine:' .. engine, lease)
  redis.call('ZADD', fleet.prefix .. 'pool:engine:' .. name, expiry, lease)
  redis.call('HSET', record, 'engine', name)
  return { 'MOVED', fleet.epoch, fleet.grant, name }
end

local reply = answer()
dispatch(fleet, limits, provisional_ms, 128)
save_fleet(fleet)
return reply
