#!lua flags=allow-oom
--[[
  tick: renew everything one gateway runs on this fleet, and say what Redis did not know of.

  Adds, it does not only update: work that runs must be counted, so a lease that is missing is rebuilt
  from its facts. That is the whole recovery protocol. Idempotent. At most 500 leases a call.
  Cost: O(L log N + D log N) for L leases of this call, N live and D <= 32 overdue leases.

  KEYS
    1  meta      hash     epoch, clock, last, learning_until, grant
    2  total     zset     lease -> expiry on the lease clock, ms
    3  cold      zset     the same, cold places only
    4  gateways  zset     holder -> session expiry
    5  events    stream   what was reclaimed and re-asserted

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  ttl_ms       integer  how long each lease lasts from now
    5  holder       string   name~nonce of the gateway process
    6+ leases       string   nine each: lease, request_id, tenant, class, engine, phase, acquired_at
                             (Unix ms), cold (1: the cold place is still held), news (1: the phase changed)

  RETURNS
    TICKED  epoch  grant  clock  learning_ms  gateways  missing ...    the leases that had to be added
]]

-- @include open_fleet
-- @include live
-- @include leave
-- @include settle

local meta, total, cold, gateways, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, tick_ms, learning_ms, ttl_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local holder, leases, width = ARGV[5], 6, 9

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
redis.call('HSET', meta, 'tick_ms', tick_ms)

-- A gateway that missed three ticks counts as gone; its name may be many incarnations old.
redis.call('ZADD', gateways, fleet.now + 3 * tick_ms, holder)
local stale = redis.call('ZRANGEBYSCORE', gateways, '-inf', fleet.now, 'LIMIT', 0, 32)
if #stale > 0 then
  redis.call('ZREM', gateways, unpack(stale))
end

local ids, records, members = {}, {}, {}
local expiry = fleet.now + ttl_ms
local function place(pool, lease)
  local scored = members[pool] or {}
  scored[#scored + 1] = expiry
  scored[#scored + 1] = lease
  members[pool] = scored
end
for i = leases, #ARGV, width do
  local lease = ARGV[i]
  ids[#ids + 1] = lease
  records[#records + 1] = fleet.prefix .. 'lease:' .. lease
  place(total, lease)
  place(fleet.prefix .. 'pool:tenant:' .. ARGV[i + 2], lease)
  if ARGV[i + 7] == '1' then
    place(cold, lease)
  end
end

local reply = { 'TICKED', fleet.epoch, fleet.grant, fleet.now, fleet.learning_ms, 0 }
if #ids > 0 then
  local scores = redis.call('ZMSCORE', total, unpack(ids))
  for n, lease in ipairs(ids) do
    -- Overdue is missing too: its place may have been granted to somebody else since.
    if not scores[n] or tonumber(scores[n]) <= fleet.now then
      reply[#reply + 1] = lease
      redis.call(
        'XADD',
        events,
        'MAXLEN',
        '~',
        10000,
        '*',
        'kind',
        'reasserted',
        'lease',
        lease,
        'holder',
        holder
      )
    end
  end
  for n, record in ipairs(records) do
    local i = leases + (n - 1) * width
    -- Where they differ, the lease has moved and the caller sent this before it heard: on one engine only.
    local engine = redis.call('HGET', record, 'engine') or ARGV[i + 4]
    place(fleet.prefix .. 'pool:engine:' .. engine, ids[n])
    -- A whole record has eight fields. One that lost any of them is written again.
    if redis.call('HLEN', record) < 8 then
      redis.call(
        'HSET',
        record,
        'request_id',
        ARGV[i + 1],
        'tenant',
        ARGV[i + 2],
        'class',
        ARGV[i + 3],
        'engine',
        engine,
        'holder',
        holder,
        'phase',
        ARGV[i + 5],
        'acquired_at',
        ARGV[i + 6]
      )
      redis.call('HSETNX', record, 'grant', 0)
    elseif ARGV[i + 8] == '1' then
      redis.call('HSET', record, 'phase', ARGV[i + 5])
    end
  end
  for pool, scored in pairs(members) do
    redis.call('ZADD', pool, unpack(scored))
  end
end

settle(fleet, events, 32)
reply[6] = live(gateways, fleet.now)
return reply
