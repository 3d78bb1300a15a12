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
    8+ leases       string   five each: lease, tenant, engine, marks (c: the cold place is still held, n: the
                             phase changed), and what only a lost record needs: request_id, class, phase,
                             acquired_at (Unix ms) between blanks; then the ids of those who stand in line

  RETURNS
    TICKED  epoch  grant  clock  learning_ms  gateways  missing  cut  granted  then so many of each, and more:
            missing  lease                      had to be added
            cut      lease, reason              somebody ended it; `*`, `drain`: the gateway is to drain
            granted  lease, class, engine, grant  waited, and has its permit
            gone     lease                      waited, and is not known any more
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
-- @include refresh_line
-- @include renew
-- @include lengthen
-- @include whereabouts

local meta, limits, total, cold, gateways, events, draining =
  KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]
local nonce, tick_ms, learning_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), ARGV[3], tonumber(ARGV[4])
local provisional_ms, holder, lease_count = ARGV[5], ARGV[6], tonumber(ARGV[7])
local leases, width = 8, 5
local waiters = leases + lease_count * width

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
redis.call('HSET', meta, 'tick_ms', tick_ms)

-- A gateway that missed three ticks counts as gone; its name may be many incarnations old.
redis.call('ZADD', gateways, fleet.now + 3 * tick_ms, holder)
local stale = redis.call('ZRANGEBYSCORE', gateways, '-inf', fleet.clock, 'LIMIT', 0, 32)
if #stale > 0 then
  redis.call('ZREM', gateways, unpack(stale))
  redis.call('SREM', draining, unpack(stale))
end

local missing, cut = {}, {}
if redis.call('SISMEMBER', draining, holder) == 1 then
  cut = { '*', 'drain' }
end

-- Per pool, what ZADD takes: expiry, lease, expiry, lease ...
local of_total, of_cold, of_tenant, of_engine = {}, {}, {}, {}
local expiry = string.format('%.0f', fleet.now + ttl_ms)
local function place(lists, name, lease)
  local list = lists[name]
  if list then
    local n = #list
    list[n + 1], list[n + 2] = expiry, lease
  else
    lists[name] = { expiry, lease }
  end
end
local ids = {}
for n = 1, lease_count do
  local i = leases + (n - 1) * width
  local lease = ARGV[i]
  ids[n], of_total[2 * n - 1], of_total[2 * n] = lease, expiry, lease
  place(of_tenant, ARGV[i + 1], lease)
  place(of_engine, ARGV[i + 2], lease)
  if string.find(ARGV[i + 3], 'c', 1, true) then
    place(of_cold, 1, lease)
  end
end

if lease_count > 0 then
  -- Overdue is missing too: its place may have been granted to somebody else since.
  local overdue = redis.call('ZCOUNT', total, '-inf', fleet.clock) > 0
  local scores = overdue and redis.call('ZMSCORE', total, unpack(ids))
  if not renew(total, of_total) then
    scores = scores or redis.call('ZMSCORE', total, unpack(ids))
    redis.call('ZADD', total, unpack(of_total))
  end
  for n, lease in ipairs(scores and ids or {}) do
    if not scores[n] or tonumber(scores[n]) <= fleet.now then
      missing[#missing + 1] = lease
      note(events, 'kind lease holder', { 'reasserted', lease, holder })
    end
  end
  if of_cold[1] and not renew(cold, of_cold[1]) then
    redis.call('ZADD', cold, unpack(of_cold[1]))
  end
  for tenant, scored in pairs(of_tenant) do
    local pool = fleet.prefix .. 'pool:tenant:' .. tenant
    if not renew(pool, scored) then
      redis.call('ZADD', pool, unpack(scored))
    end
  end
  for engine, scored in pairs(of_engine) do
    local pools = fleet.prefix .. 'pool:engine:'
    if not renew(pools .. engine, scored) then
      for n = 2, #scored, 2 do
        -- Where they differ, the lease has moved and the caller sent this before it heard: on one engine.
        local known = redis.call('HGET', fleet.prefix .. 'lease:' .. scored[n], 'engine')
        redis.call('ZADD', pools .. (known or engine), expiry, scored[n])
      end
    end
  end
end
for n, lease in ipairs(ids) do
  local record, i = fleet.prefix .. 'lease:' .. lease, leases + (n - 1) * width
  local fields, news = redis.call('HLEN', record), string.find(ARGV[i + 3], 'n', 1, true)
  if fields < 8 or news then
    local request_id, class, phase, acquired_at = string.match(ARGV[i + 4], '^(%S*) (%S+) (%S+) (%S+)$')
    if fields < 8 then
      -- A whole record has eight fields. One that lost any of them is written again.
      local engine = redis.call('HGET', record, 'engine') or ARGV[i + 2]
      local facts = { request_id, ARGV[i + 1], class, engine, holder, phase, acquired_at }
      local names = 'request_id tenant class engine holder phase acquired_at'
      redis.call('HSET', record, unpack(named(names, facts)))
      redis.call('HSETNX', record, 'grant', 0)
    end
    redis.call('HSET', record, 'phase', phase)
  end
  if fields > 8 then
    cut[#cut + 1] = lease
    cut[#cut + 1] = redis.call('HGET', record, 'cut')
  end
end

settle(fleet, events, 32)
refresh_line(fleet, limits, 16, 8)
dispatch(fleet, limits, provisional_ms, 128)

local asking = {}
for i = waiters, #ARGV do
  asking[#asking + 1] = ARGV[i]
end
local granted, gone = whereabouts(fleet, asking, provisional_ms)
local alive = redis.call('ZCOUNT', gateways, '(' .. fleet.clock, '+inf')
local reply = { 'TICKED', fleet.epoch, fleet.grant, fleet.now, fleet.learning_ms, alive }
for _, list in ipairs({ { #missing, #cut / 2, #granted / 4 }, missing, cut, granted, gone }) do
  for _, word in ipairs(list) do
    reply[#reply + 1] = word
  end
end
save_fleet(fleet)
return reply
