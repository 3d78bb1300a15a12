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

-- open_fleet(meta, nonce, tick_ms, learning_ms) -> fleet. moves the lease clock, or starts an epoch
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
local function open_fleet(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch, clock, last, learning_until, grant =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'grant'))
  local prefix = string.sub(meta, 1, -5)

  if epoch and clock and last then
    clock, last = tonumber(clock), tonumber(last)
    clock = clock + math.min(math.max(wall - last, 0), 2 * tick_ms)
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    if wall ~= last then
      redis.call('HSET', meta, 'clock', clock, 'last', wall)
    end
  else
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local top = redis.call('ZREVRANGE', prefix .. 'pool:total', 0, 0, 'WITHSCORES')[2]
    clock = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant = nonce, clock + learning_ms, 0
    redis.call(
      'HSET',
      meta,
      'schema',
      1,
      'epoch',
      epoch,
      'clock',
      clock,
      'last',
      wall,
      'grant',
      grant,
      'learning_until',
      learning_until,
      'tick_ms',
      tick_ms
    )
  end

  return {
    prefix = prefix,
    wall = wall,
    now = clock,
    epoch = epoch,
    grant = tonumber(grant) or 0,
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - clock),
    -- Without anybody in line nothing of the line need be looked at.
    waiting = redis.call('HLEN', prefix .. 'line:waiting'),
  }
end
-- live(pool, now) -> integer. the one way to count: members whose lease is not past, so no reaper is needed
local function live(pool, now)
  return redis.call('ZCOUNT', pool, '(' .. string.format('%.0f', now), '+inf')
end
-- lives(gateways, lease, now) -> boolean. whether the gateway that made this lease id still ticks
local function lives(gateways, lease, now)
  local holder = string.match(lease, '^(.*)~[^~]*$')
  local session = holder and redis.call('ZSCORE', gateways, holder)
  return session and tonumber(session) > now or false
end
-- caps(limits, tenant) -> caps or nil. the limits in force for one tenant; nil: the fleet has none
--
-- Read once per tenant and script; without a tenant (''), those that all tenants share. `shadow` lists kinds
-- of pools (total, cold, tenant, engine) whose limits are only watched: they stay in `caps` for people to see
-- and admit everybody, so operators can learn a number before they enforce it.
local read_caps = {}
local function caps(limits, tenant)
  local known = read_caps[tenant] or tenant == '' and select(2, next(read_caps))
  if known then
    return known
  end
  local fields = { 'total', 'cold', 'tenant_default', 'tenant:' .. tenant, 'weight:' .. tenant, 'shadow' }
  local total, cold, default, own, weight, shadow = unpack(redis.call('HMGET', limits, unpack(fields)))
  if not total then
    return nil
  end
  total = tonumber(total) or 0
  read_caps[tenant] = {
    total = total,
    cold = tonumber(cold) or 0,
    tenant = tonumber(own) or tonumber(default) or total,
    weight = math.max(tonumber(weight) or 1, 0.001),
    shadow = shadow and ' ' .. string.gsub(shadow, '[^a-z]', ' ') .. ' ',
  }
  return read_caps[tenant]
end
-- room(cap, kind, in_use) -> integer. free places of one pool; a watched pool always has one more
local function room(cap, kind, in_use)
  if cap.shadow and string.find(cap.shadow, ' ' .. kind .. ' ', 1, true) then
    return math.huge
  end
  return cap[kind] - in_use
end
-- leave(prefix, lease, tenant, engine) -> boolean. gives all places of a lease back; false: it had none
--
-- Removal is the exactly-once test: whoever removes the member returned the capacity, nobody else can.
local function leave(prefix, lease, tenant, engine)
  local removed = redis.call('ZREM', prefix .. 'pool:total', lease)
    + redis.call('ZREM', prefix .. 'pool:cold', lease)
  if tenant and tenant ~= '' then
    removed = removed + redis.call('ZREM', prefix .. 'pool:tenant:' .. tenant, lease)
  end
  if engine and engine ~= '' then
    removed = removed + redis.call('ZREM', prefix .. 'pool:engine:' .. engine, lease)
  end
  redis.call('DEL', prefix .. 'lease:' .. lease)
  return removed > 0
end
-- stand(fleet, limits, tenant) -> nothing. puts a tenant where it belongs among those who may be granted next
--
-- The fairest is the tenant with the least live/weight, on equal shares the one whose oldest waiter came
-- first: both in one number, the share in 1/1024 above the ticket of the head. Derived from what is held now,
-- so it cannot drift and no tenant gains by staying away. A tenant at its quota stands nowhere until it is
-- below.
local function stand(fleet, limits, tenant)
  local line = fleet.prefix .. 'line:'
  local cap = caps(limits, tenant)
  local in_use = live(fleet.prefix .. 'pool:tenant:' .. tenant, fleet.now)
  local share = math.min(math.floor(in_use * 1024 / (cap and cap.weight or 1)), 1048575)
  local waits = false
  for _, class in ipairs({ 'warm', 'cold' }) do
    local head = redis.call('ZRANGE', line .. 'queue:' .. class .. ':' .. tenant, 0, 0, 'WITHSCORES')
    waits = waits or #head > 0
    if #head > 0 and cap and room(cap, 'tenant', in_use) > 0 then
      redis.call(
        'ZADD',
        line .. 'next:' .. class,
        share * 4294967296 + tonumber(head[2]) % 4294967296,
        tenant
      )
    else
      redis.call('ZREM', line .. 'next:' .. class, tenant)
    end
  end
  if waits then
    redis.call('ZADD', line .. 'tenants', fleet.now, tenant)
  else
    redis.call('ZREM', line .. 'tenants', tenant)
  end
end
-- named(names, values) -> list. name, value, name, value ...: what HSET and XADD take
local function named(names, values)
  local words = {}
  for name in string.gmatch(names, '%S+') do
    words[#words + 1] = name
    words[#words + 1] = values[(#words + 1) / 2]
  end
  return words
end
-- note(events, names, values) -> nothing. adds one entry to an event stream, which forgets its oldest
local function note(events, names, values)
  redis.call('XADD', events, 'MAXLEN', '~', 10000, '*', unpack(named(names, values)))
end
-- settle(fleet, limits, events, most) -> integer. drops overdue leases, `most` at a time, into the events
--
-- Overdue leases are counted by nobody, so how many are dropped decides only how tidy the sets are; the bound
-- keeps ten thousand holders that died together from making one request wait.
local function settle(fleet, limits, events, most)
  local total = fleet.prefix .. 'pool:total'
  local overdue = redis.call('ZRANGEBYSCORE', total, '-inf', fleet.now, 'LIMIT', 0, most)
  for _, lease in ipairs(overdue) do
    local record = fleet.prefix .. 'lease:' .. lease
    local fields = redis.call('HMGET', record, 'tenant', 'engine', 'holder', 'class', 'acquired_at')
    local tenant, engine, holder, class, acquired_at = unpack(fields)
    leave(fleet.prefix, lease, tenant, engine)
    if fleet.waiting > 0 then
      stand(fleet, limits, tenant or '')
    end
    local age_ms = math.max(0, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    local facts = { 'reclaimed', lease, tenant or '', holder or '', class or '', engine or '', age_ms }
    note(events, 'kind lease tenant holder class engine age_ms', facts)
  end
  return #overdue
end
-- pick_engine(fleet, limits, cap, engines) -> name, full. the engine with room and the fewest live permits
--
-- Among equals the caller's order decides. Without room anywhere name is nil and full = { name, live, limit }
-- of the least loaded.
local function pick_engine(fleet, limits, cap, engines)
  local name, least, full
  for _, candidate in ipairs(engines) do
    local in_use = live(fleet.prefix .. 'pool:engine:' .. candidate, fleet.now)
    cap.engine = tonumber(redis.call('HGET', limits, 'engine:' .. candidate)) or math.huge
    if room(cap, 'engine', in_use) <= 0 then
      if not full or in_use < full.live then
        full = { name = candidate, live = in_use, limit = cap.engine }
      end
    elseif not name or in_use < least then
      name, least = candidate, in_use
    end
  end
  return name, full
end
-- seat(fleet, limits, cap, engines, warm) -> engine, class, full. where a demand could run now, and as what
--
-- An engine that holds a prefix of the prompt first; where none of those has room, any other, if the cold
-- pool has a place. Otherwise engine is nil and full = { name, live, limit } of the pool that is in the way.
local function seat(fleet, limits, cap, engines, warm)
  local engine = pick_engine(fleet, limits, cap, warm)
  if engine then
    return engine, 'warm'
  end
  local full
  engine, full = pick_engine(fleet, limits, cap, engines)
  if not engine then
    return nil, nil, { name = 'engine:' .. full.name, live = full.live, limit = full.limit }
  end
  local in_use = live(fleet.prefix .. 'pool:cold', fleet.now)
  if room(cap, 'cold', in_use) <= 0 then
    return nil, nil, { name = 'cold', live = in_use, limit = cap.cold }
  end
  return engine, 'cold'
end
-- waiter(fleet, lease) -> demand or nil. one who stands in line, as it joined
--
-- A record is text that redis-cli shows as it is: holder tenant class deadline joined request_id engines
-- warm.
local function waiter(fleet, lease)
  local record = redis.call('HGET', fleet.prefix .. 'line:waiting', lease)
  if not record then
    return nil
  end
  local words = {}
  for word in string.gmatch(record, '%S+') do
    words[#words + 1] = word
  end
  local function list(text)
    local names = {}
    for name in string.gmatch(text or '', '[^,]+') do
      names[#names + 1] = name ~= '-' and name or nil
    end
    return names
  end
  return {
    lease = lease,
    holder = words[1] or '',
    tenant = words[2] or '',
    class = words[3] or 'cold',
    deadline = tonumber(words[4]) or 0,
    request_id = words[6] or '',
    engines = list(words[7]),
    warm = list(words[8]),
    seats = (words[7] or '') .. ' ' .. (words[8] or ''),
  }
end
-- step_out(fleet, lease, known) -> tenant or nil. takes one waiter out of the line; nil: it stood in none
--
-- `known` is its demand, where the caller has read it already.
local function step_out(fleet, lease, known)
  local demand = known or waiter(fleet, lease)
  if demand then
    redis.call('HDEL', fleet.prefix .. 'line:waiting', lease)
    redis.call('ZREM', fleet.prefix .. 'line:queue:' .. demand.class .. ':' .. demand.tenant, lease)
    return demand.tenant
  end
end
-- grant(fleet, demand, engine, class, provisional_ms) -> integer. writes the places and record of a permit
local function grant(fleet, demand, engine, class, provisional_ms)
  local prefix, expiry = fleet.prefix, fleet.now + provisional_ms
  redis.call('ZADD', prefix .. 'pool:total', expiry, demand.lease)
  redis.call('ZADD', prefix .. 'pool:tenant:' .. demand.tenant, expiry, demand.lease)
  redis.call('ZADD', prefix .. 'pool:engine:' .. engine, expiry, demand.lease)
  if class == 'cold' then
    redis.call('ZADD', prefix .. 'pool:cold', expiry, demand.lease)
  end
  fleet.grant = redis.call('HINCRBY', prefix .. 'meta', 'grant', 1)
  redis.call(
    'HSET',
    prefix .. 'lease:' .. demand.lease,
    'request_id',
    demand.request_id,
    'tenant',
    demand.tenant,
    'class',
    class,
    'engine',
    engine,
    'holder',
    demand.holder,
    'phase',
    'granted',
    'acquired_at',
    fleet.wall,
    'grant',
    fleet.grant
  )
  return fleet.grant
end
-- fairest(line, class, passed, stuck) -> list. tenant and score of who is next in a class; empty: nobody
--
-- Those who are stuck in this script are stepped over. `passed` remembers per class how many of them are in
-- front, for as long as nothing changes the order.
local function fairest(line, class, passed, stuck)
  while true do
    local found = redis.call('ZRANGE', line .. 'next:' .. class, passed[class], passed[class], 'WITHSCORES')
    if not found[1] or not stuck[class .. ':' .. found[1]] then
      return found
    end
    passed[class] = passed[class] + 1
  end
end
-- dispatch(fleet, limits, provisional_ms, most) -> boolean. grants free places to the fairest, and tells them
--
-- Called by whoever may have freed something, inside the same script: a place never lies idle while an
-- eligible waiter stands in line, and nobody else can take it first. Each grant is an ordinary provisional
-- lease, so a wake-up that is lost, or a waiter that just died, costs a place for a moment and never for
-- good. Dead waiters are dropped as they reach the head. A waiter whose engine or cold place is taken lets
-- others pass, also of its own tenant. Bounded by `most` grants and drops, and by how many it looks at who
-- cannot run; false: somebody was not looked at.
local function dispatch(fleet, limits, provisional_ms, most)
  local line = fleet.prefix .. 'line:'
  if fleet.learning_ms > 0 or fleet.waiting == 0 then
    return true
  end
  local looks, rounds, complete = 200, 8, true
  local passed, stuck, deep, nowhere = { warm = 0, cold = 0 }, {}, {}, {}
  local wakes, deeper = {}, {}
  local total = caps(limits, '')
  local free = total and room(total, 'total', live(fleet.prefix .. 'pool:total', fleet.now)) or 0
  local cold_full = total and room(total, 'cold', live(fleet.prefix .. 'pool:cold', fleet.now)) <= 0
  while free > 0 do
    local warm = fairest(line, 'warm', passed, stuck)
    local cold = cold_full and {} or fairest(line, 'cold', passed, stuck)
    if #warm == 0 and #cold == 0 then
      -- The heads of all tenants come before the second of anybody.
      rounds = rounds - 1
      if #deeper == 0 or rounds == 0 then
        complete = #deeper == 0
        break
      end
      for _, place in ipairs(deeper) do
        stuck[place] = nil
      end
      passed, deeper = { warm = 0, cold = 0 }, {}
      warm = fairest(line, 'warm', passed, stuck)
      cold = cold_full and {} or fairest(line, 'cold', passed, stuck)
    end
    if most == 0 or looks == 0 or (#warm == 0 and #cold == 0) then
      complete = #warm == 0 and #cold == 0
      break
    end
    local class = (#cold == 0 or (#warm > 0 and tonumber(warm[2]) <= tonumber(cold[2]))) and 'warm' or 'cold'
    local tenant = class == 'warm' and warm[1] or cold[1]
    local place = class .. ':' .. tenant
    local at = deep[place] or 0
    local lease = redis.call('ZRANGE', line .. 'queue:' .. place, at, at)[1]
    local demand = lease and waiter(fleet, lease)
    if not lease and at > 0 then
      stuck[place] = true
    elseif
      not demand
      or demand.deadline <= fleet.now
      or not lives(fleet.prefix .. 'gateways', lease, fleet.now)
    then
      if lease and not step_out(fleet, lease) then
        redis.call('ZREM', line .. 'queue:' .. place, lease)
      end
      stand(fleet, limits, tenant)
      most, passed = most - 1, { warm = 0, cold = 0 }
    else
      local cap = caps(limits, tenant)
      local engine, as
      -- Nothing is freed in here: where one found no seat, nobody finds one who would take the same.
      if not nowhere[demand.seats] then
        engine, as = seat(fleet, limits, cap, demand.engines, demand.warm)
      end
      if room(cap, 'tenant', live(fleet.prefix .. 'pool:tenant:' .. tenant, fleet.now)) <= 0 then
        stand(fleet, limits, tenant)
        most, passed = most - 1, { warm = 0, cold = 0 }
      elseif not engine then
        nowhere[demand.seats] = true
        looks, deep[place], stuck[place] = looks - 1, at + 1, true
        deeper[#deeper + 1] = place
      else
        step_out(fleet, lease, demand)
        local number = grant(fleet, demand, engine, as, provisional_ms)
        stand(fleet, limits, tenant)
        local words = table.concat({ lease, number, as, engine }, ' ')
        wakes[demand.holder] = (wakes[demand.holder] or '') .. words .. '\n'
        most, free, passed = most - 1, free - 1, { warm = 0, cold = 0 }
        cold_full = free > 0 and room(total, 'cold', live(fleet.prefix .. 'pool:cold', fleet.now)) <= 0
      end
    end
  end
  for holder, text in pairs(wakes) do
    redis.call('SPUBLISH', line .. 'wake:' .. holder, fleet.epoch .. '\n' .. text)
  end
  return complete
end

local meta, limits, cold, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local provisional_ms, leases = tonumber(ARGV[4]), { unpack(ARGV, 5) }

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
settle(fleet, limits, events, 32)
local given_back = #leases > 0 and redis.call('ZREM', cold, unpack(leases)) or 0
dispatch(fleet, limits, provisional_ms, 128)
return { 'DOWNGRADED', fleet.epoch, fleet.grant, given_back }
