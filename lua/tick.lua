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
    7  lease_count  integer  how many leases there are
    8  news_count   integer  how many of them changed their phase
    9  facts        string   what only a lost record needs, a line for each lease, in their order:
                             request_id, class, phase, acquired_at (Unix ms) between blanks
    10+ groups      string   leases that have the same: tenant, engine, c (with cold places) or -, how many,
                             and so many leases; then the news, two each: lease, phase; then the ids of
                             those who stand in line

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
local provisional_ms, holder, lease_count, news_count = ARGV[5], ARGV[6], tonumber(ARGV[7]), ARGV[8]
local facts, groups = ARGV[9], 10

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

-- Per pool, what ZADD takes: expiry, lease, expiry, lease ... A whole record has eight fields, and a ninth
-- when somebody ended the lease; those that have another number than eight are looked at below.
local call, expiry = redis.call, string.format('%.0f', fleet.now + ttl_ms)
local pools, records = fleet.prefix .. 'pool:', fleet.prefix .. 'lease:'
local ids, of_total, of_cold, of_tenant, of_engine, odd = {}, {}, {}, {}, {}, {}
local at, read = groups, 0
while read < lease_count do
  local tenant, engine, last = ARGV[at], ARGV[at + 1], at + 3 + ARGV[at + 3]
  of_tenant[tenant], of_engine[engine] = of_tenant[tenant] or {}, of_engine[engine] or {}
  local of_this_tenant, of_this_engine = of_tenant[tenant], of_engine[engine]
  local t, e, c = #of_this_tenant, #of_this_engine, ARGV[at + 2] == 'c' and #of_cold
  for i = at + 4, last do
    local lease = ARGV[i]
    read, t, e = read + 1, t + 2, e + 2
    ids[read] = lease
    of_total[2 * read - 1], of_total[2 * read] = expiry, lease
    of_this_tenant[t - 1], of_this_tenant[t] = expiry, lease
    of_this_engine[e - 1], of_this_engine[e] = expiry, lease
    if c then
      of_cold[c + 1], of_cold[c + 2] = expiry, lease
      c = c + 2
    end
    local fields = call('HLEN', records .. lease)
    if fields ~= 8 then
      odd[#odd + 1] = { read, fields, tenant, engine }
    end
  end
  at = last + 1
end
local news, waiters = at, at + 2 * news_count

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
  if of_cold[1] and not renew(cold, of_cold) then
    redis.call('ZADD', cold, unpack(of_cold))
  end
  for tenant, scored in pairs(of_tenant) do
    local pool = pools .. 'tenant:' .. tenant
    if not renew(pool, scored) then
      redis.call('ZADD', pool, unpack(scored))
    end
  end
  for engine, scored in pairs(of_engine) do
    if not renew(pools .. 'engine:' .. engine, scored) then
      for n = 2, #scored, 2 do
        -- Where they differ, the lease has moved and the caller sent this before it heard: on one engine.
        local known = redis.call('HGET', records .. scored[n], 'engine')
        redis.call('ZADD', pools .. 'engine:' .. (known or engine), expiry, scored[n])
      end
    end
  end
end
local lines
for _, found in ipairs(odd) do
  local n, fields, tenant, engine = unpack(found)
  local record = records .. ids[n]
  if fields < 8 then
    -- One that lost any of its fields is written again.
    if not lines then
      lines = {}
      for line in string.gmatch(facts, '[^\n]+') do
        lines[#lines + 1] = line
      end
    end
    local request_id, class, phase, acquired_at = string.match(lines[n], '^(%S*) (%S+) (%S+) (%S+)$')
    local known = redis.call('HGET', record, 'engine') or engine
    local values = { request_id, tenant, class, known, holder, phase, acquired_at }
    local names = 'request_id tenant class engine holder phase acquired_at'
    redis.call('HSET', record, unpack(named(names, values)))
    redis.call('HSETNX', record, 'grant', 0)
  else
    cut[#cut + 1] = ids[n]
    cut[#cut + 1] = redis.call('HGET', record, 'cut')
  end
end
for i = news, waiters - 1, 2 do
  redis.call('HSET', records .. ARGV[i], 'phase', ARGV[i + 1])
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
