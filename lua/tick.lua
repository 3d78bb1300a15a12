#!lua flags=allow-oom
--[[
  tick: renew everything one gateway runs on this fleet, and say what Redis did not know of.

  Adds, it does not only update: work that runs must be counted, so a lease that is missing is rebuilt
  from its facts. That is the whole recovery protocol. Tells what became of those of the gateway's waiters
  that no wake-up reached. Idempotent. At most 500 leases a call.
  Cost: O(L log N + D log N + W) for L leases and W waiters of this call, N live, D <= 32 overdue; a dispatch.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant
    2  limits    hash     total, cold, tenant_default, tenant:T, weight:T, engine:E, shadow
    3  total     zset     lease -> expiry on the lease clock, ms
    4  cold      zset     the same, cold places only
    5  gateways  zset     holder -> session expiry
    6  events    stream   what was reclaimed and re-asserted
    7  draining  set      holders that were told to drain

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  ttl_ms       integer  how long each lease lasts from now
    5  provisional_ms  integer  how long a lease lasts that is handed on
    6  holder       string   name~nonce of the gateway process
    7  lease_count  integer  how many of the rest are leases
    8+ leases       string   nine each: lease, request_id, tenant, class, engine, phase, acquired_at
                             (Unix ms), cold (1: the cold place is still held), news (1: the phase changed);
                             then the ids of those who stand in line

  RETURNS
    TICKED  epoch  grant  clock  learning_ms  gateways  missing  cut  granted  then so many of each, and more:
            missing  lease                      had to be added
            cut      lease, reason              somebody ended it; `*`, `drain`: the gateway is to drain
            granted  lease, class, engine, grant  waited, and has its permit
            gone     lease                      waited, and is not known any more
]]

-- @include open_fleet
-- @include live
-- @include lives
-- @include caps
-- @include room
-- @include leave
-- @include stand
-- @include named
-- @include note
-- @include settle
-- @include pick_engine
-- @include seat
-- @include waiter
-- @include step_out
-- @include grant
-- @include fairest
-- @include dispatch
-- @include refresh_line
-- @include whereabouts

local meta, limits, total, cold, gateways, events, draining =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local nonce, tick_ms, learning_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local provisional_ms, holder, lease_count = tonumber(ARGV[5]), ARGV[6], tonumber(ARGV[7])
local leases, width = 8, 9
local waiters = leases + lease_count * width

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
redis.call('HSET', meta, 'tick_ms', tick_ms)

-- A gateway that missed three ticks counts as gone; its name may be many incarnations old.
redis.call('ZADD', gateways, fleet.now + 3 * tick_ms, holder)
local stale = redis.call('ZRANGEBYSCORE', gateways, '-inf', fleet.now, 'LIMIT', 0, 32)
if #stale > 0 then
  redis.call('ZREM', gateways, unpack(stale))
  redis.call('SREM', draining, unpack(stale))
end

local ids, records, members = {}, {}, {}
local expiry = fleet.now + ttl_ms
local function place(pool, lease)
  local scored = members[pool] or {}
  scored[#scored + 1] = expiry
  scored[#scored + 1] = lease
  members[pool] = scored
end
for i = leases, waiters - 1, width do
  local lease = ARGV[i]
  ids[#ids + 1] = lease
  records[#records + 1] = fleet.prefix .. 'lease:' .. lease
  place(total, lease)
  place(fleet.prefix .. 'pool:tenant:' .. ARGV[i + 2], lease)
  if ARGV[i + 7] == '1' then
    place(cold, lease)
  end
end

local missing, cut = {}, {}
if redis.call('SISMEMBER', draining, holder) == 1 then
  cut = { '*', 'drain' }
end
if #ids > 0 then
  local scores = redis.call('ZMSCORE', total, unpack(ids))
  for n, lease in ipairs(ids) do
    -- Overdue is missing too: its place may have been granted to somebody else since.
    if not scores[n] or tonumber(scores[n]) <= fleet.now then
      missing[#missing + 1] = lease
      note(events, 'kind lease holder', { 'reasserted', lease, holder })
    end
  end
  for n, record in ipairs(records) do
    local i = leases + (n - 1) * width
    -- Where they differ, the lease has moved and the caller sent this before it heard: on one engine only.
    local engine = redis.call('HGET', record, 'engine') or ARGV[i + 4]
    place(fleet.prefix .. 'pool:engine:' .. engine, ids[n])
    -- A whole record has eight fields. One that lost any of them is written again.
    local fields = redis.call('HLEN', record)
    if fields < 8 then
      local facts = { ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], engine, holder, ARGV[i + 5], ARGV[i + 6] }
      local names = 'request_id tenant class engine holder phase acquired_at'
      redis.call('HSET', record, unpack(named(names, facts)))
      redis.call('HSETNX', record, 'grant', 0)
    elseif ARGV[i + 8] == '1' then
      redis.call('HSET', record, 'phase', ARGV[i + 5])
    end
    if fields > 8 then
      cut[#cut + 1] = ARGV[i]
      cut[#cut + 1] = redis.call('HGET', record, 'cut')
    end
  end
  for pool, scored in pairs(members) do
    redis.call('ZADD', pool, unpack(scored))
  end
end

settle(fleet, limits, events, 32)
refresh_line(fleet, limits, 16, 8)
dispatch(fleet, limits, provisional_ms, 128)

local asking = {}
for i = waiters, #ARGV do
  asking[#asking + 1] = ARGV[i]
end
local granted, gone = whereabouts(fleet, asking)
local alive = live(gateways, fleet.now)
local reply = { 'TICKED', fleet.epoch, fleet.grant, fleet.now, fleet.learning_ms, alive }
for _, list in ipairs({ { #missing, #cut / 2, #granted / 4 }, missing, cut, granted, gone }) do
  for _, word in ipairs(list) do
    reply[#reply + 1] = word
  end
end
return reply
