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

-- read_clock(meta, nonce, tick_ms, learning_ms) -> values. moves the lease clock on, or starts an epoch
--
-- In this order: epoch, grant, now, clock, wall, wall_text, learning_ms, moved. The first half of a script
-- has them as they are; for what is shared by all scripts `open_fleet` makes a table of them.
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
-- `clock` and `wall_text` are `now` and `wall` as text: Redis would print a number anew for each command that
-- takes it. What moved is for the caller to write. Whoever finds no clock starts an epoch.
local function read_clock(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local us = time[2] + 0
  local wall = time[1] * 1000 + (us - us % 1000) / 1000
  local found = redis.call('HMGET', meta, 'clock', 'last', 'grant', 'epoch', 'learning_until')
  local clock, last, grant, epoch, learning_until = found[1], found[2], found[3], found[4], found[5]
  local now = tonumber(clock)
  local before = clock == last and now or tonumber(last)

  if not (epoch and now and before) then
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local total = string.sub(meta, 1, -5) .. 'pool:total'
    local top = redis.call('ZREVRANGE', total, 0, 0, 'WITHSCORES')[2]
    now = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant, before = nonce, now + learning_ms, 0, nil
    -- What each script reads and writes comes first: Redis looks through a small hash from its front.
    redis.call('HSET', meta, 'clock', now, 'last', wall, 'grant', grant, 'epoch', epoch)
    redis.call('HSET', meta, 'learning_until', learning_until, 'tick_ms', tick_ms, 'schema', 1)
  elseif wall > before then
    now = now + math.min(wall - before, 2 * tick_ms)
  end
  local wall_text, left = last, (tonumber(learning_until) or 0) - now
  if wall ~= before then
    wall_text = string.format('%d', wall)
    clock = now == wall and wall_text or string.format('%d', now)
  end
  return epoch, tonumber(grant) or 0, now, clock, wall, wall_text, left > 0 and left or 0, wall ~= before
end
-- open_fleet(meta, epoch, grant, now, clock, wall, wall_text, learning_ms, moved) -> fleet. a table
--
-- Takes what `read_clock` found. Whoever opens it ends with `save_fleet`, which writes what moved.
local function open_fleet(meta, epoch, grant, now, clock, wall, wall_text, learning_ms, moved)
  return {
    meta = meta,
    prefix = string.sub(meta, 1, -5),
    epoch = epoch,
    grant = grant,
    now = now,
    clock = clock,
    wall = wall,
    wall_text = wall_text,
    learning_ms = learning_ms,
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    moved = moved,
    caps = {},
  }
end
-- save_fleet(fleet) -> nothing. writes the clock and the number of the last grant, where they changed
local function save_fleet(fleet)
  if fleet.granted then
    redis.call('HSET', fleet.meta, 'clock', fleet.clock, 'last', fleet.wall_text, 'grant', fleet.granted)
  elseif fleet.moved then
    redis.call('HSET', fleet.meta, 'clock', fleet.clock, 'last', fleet.wall_text)
  end
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
-- settle(fleet, events, most) -> integer. drops overdue leases, `most` at a time, into the events
--
-- Overdue leases are counted by nobody, so how many are dropped decides only how tidy the sets are; the bound
-- keeps ten thousand holders that died together from making one request wait.
local function settle(fleet, events, most)
  local total = fleet.prefix .. 'pool:total'
  local overdue = fleet.overdue or redis.call('ZCOUNT', total, '-inf', fleet.clock)
  if overdue == 0 then
    return 0
  end
  local leases = redis.call('ZRANGEBYSCORE', total, '-inf', fleet.clock, 'LIMIT', 0, most)
  fleet.freed = fleet.freed or {}
  for _, lease in ipairs(leases) do
    local record = fleet.prefix .. 'lease:' .. lease
    local fields = redis.call('HMGET', record, 'tenant', 'engine', 'holder', 'class', 'acquired_at')
    local tenant, engine, holder, class, acquired_at = unpack(fields)
    leave(fleet.prefix, lease, tenant, engine)
    fleet.freed[tenant or ''] = fleet.freed[tenant or ''] or 'places'
    local age_ms = math.max(0, fleet.wall - (tonumber(acquired_at) or fleet.wall))
    local facts = { 'reclaimed', lease, tenant or '', holder or '', class or '', engine or '', age_ms }
    note(events, 'kind lease tenant holder class engine age_ms', facts)
  end
  -- While many are left, the other pools hold many that ran out, too.
  fleet.crowded = overdue > #leases
  return #leases
end
-- live(fleet, pool, enough) -> integer. the one way to count: members whose lease is not past
--
-- No reaper is needed for it. Of a pool with less than `enough` members those that ran out are not told from
-- the others, unless many ran out together; 0 always tells them. Either costs the same however large the pool
-- is. A dispatch remembers what it counted: in `counted`, and in `exact` where it told them.
local function live(fleet, pool, enough)
  local counted, exact, key = fleet.counted, fleet.exact, fleet.prefix .. 'pool:' .. pool
  local count = counted and counted[pool] or redis.call('ZCARD', key)
  if (count >= enough or fleet.crowded) and not (exact and exact[pool]) then
    count = count - redis.call('ZCOUNT', key, '-inf', fleet.clock)
    if exact then
      exact[pool] = true
    end
  end
  if counted then
    counted[pool] = count
  end
  return count
end
-- caps(fleet, limits, tenant, engines, read) -> caps or nil. the limits in force; nil: there are none
--
-- Each is read once per script, those of `engines` with the first tenant's. `shadow` lists kinds of
-- pools (total, cold, tenant, engine) whose limits are only watched: they stay there for people to see and
-- admit everybody, so operators can learn a number before they enforce it. `read` is what the caller has read
-- already, all but the weight, which `stand` then asks for.
local function caps(fleet, limits, tenant, engines, read)
  local first, own, weight = fleet.cap, 'tenant:' .. tenant, 'weight:' .. tenant
  if fleet.caps[tenant] then
    return fleet.caps[tenant]
  end
  local cap
  if first then
    local found = redis.call('HMGET', limits, own, weight)
    cap = {
      total = first.total,
      cold = first.cold,
      default = first.default,
      tenant = tonumber(found[1]) or first.default,
      weight = found[2],
      shadow = first.shadow,
      engines = first.engines,
    }
  else
    local found = read
    if not found then
      local asked = { own }
      for n = 1, #engines do
        asked[n + 1] = 'engine:' .. engines[n]
      end
      asked[#asked + 1] = weight
      found = redis.call('HMGET', limits, 'total', 'cold', 'tenant_default', 'shadow', unpack(asked))
    end
    if not found[1] then
      return nil
    end
    local total, shadow = tonumber(found[1]) or 0, found[4]
    local default = tonumber(found[3]) or total
    cap = {
      total = total,
      cold = tonumber(found[2]) or 0,
      default = default,
      tenant = tonumber(found[5]) or default,
      weight = found[#engines + 6],
      shadow = shadow and shadow ~= '' and ' ' .. string.gsub(shadow, '[^a-z]', ' ') .. ' ',
      engines = {},
    }
    for n = 1, #engines do
      cap.engines[engines[n]] = tonumber(found[n + 5]) or math.huge
    end
    fleet.cap = cap
  end
  fleet.caps[tenant] = cap
  return cap
end
-- full(fleet, cap, kind, pool, limit) -> table or nil. a pool without a free place: { name, live, limit }
--
-- A pool that is only watched is never full.
local function full(fleet, cap, kind, pool, limit)
  local in_use = live(fleet, pool, limit)
  if in_use >= limit and not (cap.shadow and string.find(cap.shadow, ' ' .. kind .. ' ', 1, true)) then
    return { name = pool, live = in_use, limit = limit }
  end
end
-- pick_engine(fleet, limits, cap, engines) -> name, full. the engine with room and the fewest live permits
--
-- Among equals the caller's order decides. Without room anywhere name is nil, and full says so of the least
-- loaded.
local function pick_engine(fleet, limits, cap, engines)
  local name, least, blocked
  for n = 1, #engines do
    local pool, limit = 'engine:' .. engines[n], cap.engines[engines[n]]
    if not limit then
      limit = tonumber(redis.call('HGET', limits, pool)) or math.huge
      cap.engines[engines[n]] = limit
    end
    local no_room = full(fleet, cap, 'engine', pool, limit)
    local in_use = no_room and no_room.live or #engines > 1 and live(fleet, pool, limit) or 0
    if no_room then
      blocked = blocked and blocked.live <= in_use and blocked or no_room
    elseif not name or in_use < least then
      name, least = engines[n], in_use
    end
  end
  return name, blocked
end
-- seat(fleet, limits, cap, demand) -> engine, class, full. where a demand could run now, and as what
--
-- An engine that holds a prefix of the prompt first; where none of those has room, any other, if the cold
-- pool has a place. Otherwise engine is nil and full = { name, live, limit } of the pool that is in the way,
-- the most specific one.
local function seat(fleet, limits, cap, demand)
  local blocked = full(fleet, cap, 'tenant', 'tenant:' .. demand.tenant, cap.tenant)
    or full(fleet, cap, 'total', 'total', cap.total)
  if blocked then
    return nil, nil, blocked
  end
  local engine = #demand.warm > 0 and pick_engine(fleet, limits, cap, demand.warm)
  if engine then
    return engine, 'warm'
  end
  engine, blocked = pick_engine(fleet, limits, cap, demand.engines)
  blocked = not engine and blocked or full(fleet, cap, 'cold', 'cold', cap.cold)
  if blocked then
    return nil, nil, blocked
  end
  return engine, 'cold'
end
-- write_record(record, request_id, tenant, class, engine, holder, acquired_at, grant) -> nothing. facts
local function write_record(record, request_id, tenant, class, engine, holder, acquired_at, grant)
  redis.call(
    'HSET',
    record,
    'request_id',
    request_id,
    'tenant',
    tenant,
    'class',
    class,
    'engine',
    engine,
    'holder',
    holder,
    'phase',
    'granted',
    'acquired_at',
    acquired_at,
    'grant',
    grant
  )
end
-- grant(fleet, demand, engine, class, provisional_ms) -> integer. writes the places and record of a permit
local function grant(fleet, demand, engine, class, provisional_ms)
  local prefix, lease, tenant = fleet.prefix, demand.lease, demand.tenant
  local pools, expiry = prefix .. 'pool:', string.format('%d', fleet.now + provisional_ms)
  redis.call('ZADD', pools .. 'total', expiry, lease)
  redis.call('ZADD', pools .. 'tenant:' .. tenant, expiry, lease)
  redis.call('ZADD', pools .. 'engine:' .. engine, expiry, lease)
  if class == 'cold' then
    redis.call('ZADD', pools .. 'cold', expiry, lease)
  end
  fleet.grant = fleet.grant + 1
  fleet.granted = string.format('%d', fleet.grant)
  local record, at, number = prefix .. 'lease:' .. lease, fleet.wall_text, fleet.granted
  write_record(record, demand.request_id, tenant, class, engine, demand.holder, at, number)
  return fleet.grant
end
-- waiter(fleet, lease, read) -> demand or nil. one who stands in line, as it joined
--
-- A record is text that redis-cli shows as it is: holder tenant class deadline joined request_id engines
-- warm. `read` is the record, where the caller has read it already. Who cannot be read is overdue.
local function waiter(fleet, lease, read)
  local record = read or redis.call('HGET', fleet.prefix .. 'line:waiting', lease)
  if not record then
    return nil
  end
  local holder, tenant, class, deadline, request_id, engines, warm =
    string.match(record, '^(%S+) (%S+) (%S+) (%S+) %S+ (%S+) (%S+) (%S+)')
  local demand = {
    lease = lease,
    holder = holder or '',
    tenant = tenant or '',
    class = class or 'cold',
    deadline = tonumber(deadline) or 0,
    request_id = request_id or '',
    engines = {},
    warm = {},
    seats = (engines or '') .. ' ' .. (warm or ''),
  }
  for name in string.gmatch(engines or '', '[^,]+') do
    demand.engines[#demand.engines + 1] = name
  end
  for name in string.gmatch(warm ~= '-' and warm or '', '[^,]+') do
    demand.warm[#demand.warm + 1] = name
  end
  return demand
end
-- step_out(fleet, lease, known) -> tenant or nil. takes one waiter out of the line; nil: it stood in none
--
-- `known` is its demand, where the caller has read it already. Where its tenant stands then is the caller's
-- to say: by `stand`, or in `freed` for the next dispatch.
local function step_out(fleet, lease, known)
  local demand = known or waiter(fleet, lease)
  if demand then
    redis.call('HDEL', fleet.prefix .. 'line:waiting', lease)
    redis.call('ZREM', fleet.prefix .. 'line:queue:' .. demand.class .. ':' .. demand.tenant, lease)
    return demand.tenant
  end
end
-- ticks(fleet, holder) -> boolean. whether a gateway has a session, asked once
local function ticks(fleet, holder)
  fleet.sessions = fleet.sessions or {}
  local known = fleet.sessions[holder]
  if known == nil then
    local session = redis.call('ZSCORE', fleet.prefix .. 'gateways', holder)
    known = session and tonumber(session) > fleet.now or false
    fleet.sessions[holder] = known
  end
  return known
end
-- tree(key) -> nothing. makes a sorted set a tree, which it stays while it has members
--
-- Up to 128 short members are one piece of memory to Redis, read from its front: a write among a hundred
-- costs five times what it costs among ten thousand. One member of more than 64 bytes makes the set a tree.
local function tree(key)
  local long = string.rep('-', 65)
  redis.call('ZADD', key, 0, long)
  redis.call('ZREM', key, long)
end
-- put(key, score, member) -> nothing. adds to one of the line's sorted sets, or moves what is there
--
-- A set of some size is made a tree.
local function put(key, score, member)
  if redis.call('ZADD', key, score, member) == 1 and redis.call('ZCARD', key) == 17 then
    tree(key)
  end
end
-- stand(fleet, limits, tenant, left) -> boolean. puts a tenant where it belongs in line; false: no one waits
--
-- The fairest is the tenant with the least live/weight, on equal shares the one whose oldest waiter came
-- first: both in one number, the share in 1/1024 above the ticket of the head. Derived from what is held now,
-- so it cannot drift and no tenant gains by staying away. A tenant at its quota stands nowhere until it is
-- below. `left` is the class in which somebody left the line, or `any`.
local function stand(fleet, limits, tenant, left)
  local line, waits, share = fleet.prefix .. 'line:', false, nil
  for n = 1, 2 do
    local class = n == 1 and 'warm' or 'cold'
    local head = redis.call('ZRANGE', line .. 'queue:' .. class .. ':' .. tenant, '0', '0', 'WITHSCORES')
    if head[1] and not waits then
      local cap, pool = caps(fleet, limits, tenant, {}), 'tenant:' .. tenant
      local in_use = live(fleet, pool, 0)
      if cap and not full(fleet, cap, 'tenant', pool, cap.tenant) then
        local weight = cap.weight
        if weight == nil then
          weight = redis.call('HGET', limits, 'weight:' .. tenant)
        end
        share = math.min(math.floor(in_use * 1024 / math.max(tonumber(weight) or 1, 0.001)), 1048575)
      end
      waits = true
    end
    if head[1] and share then
      local place = string.format('%.0f', share * 4294967296 + head[2] % 4294967296)
      put(line .. 'next:' .. class, place, tenant)
    elseif head[1] or left == class or left == 'any' then
      redis.call('ZREM', line .. 'next:' .. class, tenant)
    end
  end
  if left and not waits then
    redis.call('ZREM', line .. 'tenants', tenant)
  end
  return waits
end
-- fairest(fleet, cap, passed, stuck) -> class, tenant. who is next in line; nil: nobody
--
-- Of the warm and, where the cold pool has room, of the cold. Those who are stuck in this script are stepped
-- over; `passed` remembers per class how many of them are in front, while nothing changes the order.
local function fairest(fleet, cap, passed, stuck)
  local class, tenant, least
  for n = 1, 2 do
    local next_ = n == 1 and 'warm' or 'cold'
    while next_ == 'warm' or not full(fleet, cap, 'cold', 'cold', cap.cold) do
      local at = passed[next_] or '0'
      local found = redis.call('ZRANGE', fleet.prefix .. 'line:next:' .. next_, at, at, 'WITHSCORES')
      if not (found[1] and stuck[next_ .. ':' .. found[1]]) then
        local place = tonumber(found[2])
        if place and (not least or place < least) then
          class, tenant, least = next_, found[1], place
        end
        break
      end
      passed[next_] = at + 1
    end
  end
  return class, tenant
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
  fleet.waiting = fleet.waiting or redis.call('HLEN', line .. 'waiting')
  if fleet.waiting == 0 then
    return true
  end
  local counted = {}
  fleet.counted, fleet.exact = counted, {}
  for tenant, left in pairs(fleet.freed or {}) do
    stand(fleet, limits, tenant, left)
  end
  local cap = fleet.learning_ms == 0 and (fleet.cap or caps(fleet, limits, '', {}))
  local looks, rounds, complete = 200, 8, true
  local passed, stuck, deep, nowhere, deeper, wakes = {}, {}, {}, {}, {}, {}
  while cap and not full(fleet, cap, 'total', 'total', cap.total) do
    local class, tenant = fairest(fleet, cap, passed, stuck)
    if not class and #deeper > 0 and rounds > 1 then
      -- The heads of all tenants come before the second of anybody.
      for _, place in ipairs(deeper) do
        stuck[place] = nil
      end
      rounds, passed, deeper = rounds - 1, {}, {}
      class, tenant = fairest(fleet, cap, passed, stuck)
    end
    if not class or most == 0 or looks == 0 then
      complete = not class and #deeper == 0
      break
    end
    local place = class .. ':' .. tenant
    local at = deep[place] or '0'
    local lease = redis.call('ZRANGE', line .. 'queue:' .. place, at, at)[1]
    local demand = lease and waiter(fleet, lease)
    local dead = not demand or demand.deadline <= fleet.now or not ticks(fleet, demand.holder)
    local engine, as, blocked
    -- Nothing is freed in here: where one found no seat, nobody finds one who would take the same.
    if not dead and not nowhere[demand.seats] then
      engine, as, blocked = seat(fleet, limits, caps(fleet, limits, tenant, {}), demand)
    end
    if not lease and at ~= '0' then
      stuck[place] = true
    elseif engine then
      step_out(fleet, lease, demand)
      local number = grant(fleet, demand, engine, as, provisional_ms)
      counted.total, counted.cold = counted.total + 1, counted.cold + (as == 'cold' and 1 or 0)
      counted['tenant:' .. tenant] = counted['tenant:' .. tenant] + 1
      counted['engine:' .. engine] = counted['engine:' .. engine] + 1
      local words = lease .. ' ' .. number .. ' ' .. as .. ' ' .. engine .. '\n'
      wakes[demand.holder] = (wakes[demand.holder] or '') .. words
    elseif dead then
      if lease and not step_out(fleet, lease, demand) then
        redis.call('ZREM', line .. 'queue:' .. place, lease)
      end
    elseif not (blocked and blocked.name == 'tenant:' .. tenant) then
      nowhere[demand.seats] = true
      looks, deep[place], stuck[place] = looks - 1, at + 1, true
      deeper[#deeper + 1] = place
    end
    if not stuck[place] then
      stand(fleet, limits, tenant, class)
      most, passed = most - 1, {}
    end
  end
  for holder, text in pairs(wakes) do
    redis.call('SPUBLISH', line .. 'wake:' .. holder, fleet.epoch .. '\n' .. text)
  end
  return complete
end
-- refresh_line(fleet, limits, tenants, heads) -> nothing. looks again at those who waited longest for a look
--
-- What changed without anybody freeing a place (a lease that lapsed, a limit that was edited by hand, a
-- gateway that died) reaches the order of the line here, a bounded number of tenants at a time. A few drawn
-- by lot are looked at too, so that no dead waiter fills the line for long, wherever it stands.
local function refresh_line(fleet, limits, tenants, heads)
  local line = fleet.prefix .. 'line:'
  local seen = {}
  local drawn = redis.call('HRANDFIELD', line .. 'waiting', tenants, 'WITHVALUES')
  for n = 1, #drawn, 2 do
    local demand = waiter(fleet, drawn[n], drawn[n + 1])
    if
      demand.deadline <= fleet.now
      or not ticks(fleet, demand.holder)
      or not redis.call('ZSCORE', line .. 'queue:' .. demand.class .. ':' .. demand.tenant, demand.lease)
    then
      seen[step_out(fleet, demand.lease, demand)] = true
    elseif not redis.call('ZSCORE', line .. 'tenants', demand.tenant) then
      seen[demand.tenant] = true
    end
  end
  for _, tenant in ipairs(redis.call('ZRANGE', line .. 'tenants', 0, tenants - 1)) do
    seen[tenant] = true
    for _, class in ipairs({ 'warm', 'cold' }) do
      local queue = line .. 'queue:' .. class .. ':' .. tenant
      local leases = redis.call('ZRANGE', queue, 0, heads - 1)
      local records = #leases > 0 and redis.call('HMGET', line .. 'waiting', unpack(leases)) or {}
      for n, lease in ipairs(leases) do
        local demand = records[n] and waiter(fleet, lease, records[n])
        if not demand then
          redis.call('ZREM', queue, lease)
        elseif demand.deadline <= fleet.now or not ticks(fleet, demand.holder) then
          step_out(fleet, lease, demand)
        end
      end
    end
  end
  for tenant in pairs(seen) do
    if stand(fleet, limits, tenant, 'any') then
      put(line .. 'tenants', fleet.clock, tenant)
    end
  end
end
-- renew(pool, scored) -> boolean. moves the expiries of members; false: some are none, or did not move
--
-- `scored` is what ZADD takes: expiry, lease, expiry, lease ... Nothing is added: that is the caller's to do,
-- who knows why a member may be missing. A pool of some size is made a tree for all who use it; whoever has
-- only a few in it leaves that to others.
local function renew(pool, scored)
  local moved = redis.call('ZADD', pool, 'XX', 'CH', unpack(scored))
  local members = #scored > 8 and redis.call('ZCARD', pool) or 0
  if members > 16 and members <= 128 then
    tree(pool)
  end
  return moved * 2 == #scored
end
-- lengthen(fleet, lease, tenant, engine, provisional_ms) -> nothing. a grant that is told again lasts anew
--
-- So whoever is told of a grant may rely on it for `provisional_ms` from before its call, however often it
-- asked. Only places that the lease still has, and none is cut short.
local function lengthen(fleet, lease, tenant, engine, provisional_ms)
  for _, pool in ipairs({ 'total', 'cold', 'tenant:' .. tenant, 'engine:' .. engine }) do
    redis.call('ZADD', fleet.prefix .. 'pool:' .. pool, 'XX', 'GT', fleet.now + provisional_ms, lease)
  end
end
-- whereabouts(fleet, leases, provisional_ms) -> granted, gone. what became of those who stood in line
--
-- granted has four words for each: lease, class, engine, grant; gone are those whom nothing knows any more.
local function whereabouts(fleet, leases, provisional_ms)
  local granted, gone = {}, {}
  for first = 1, #leases, 500 do
    local some = { unpack(leases, first, math.min(first + 499, #leases)) }
    local expiries = redis.call('ZMSCORE', fleet.prefix .. 'pool:total', unpack(some))
    local records = redis.call('HMGET', fleet.prefix .. 'line:waiting', unpack(some))
    for n, lease in ipairs(some) do
      if expiries[n] and tonumber(expiries[n]) > fleet.now then
        local record = fleet.prefix .. 'lease:' .. lease
        local facts = redis.call('HMGET', record, 'class', 'engine', 'grant', 'tenant')
        local class, engine, number, tenant = unpack(facts)
        lengthen(fleet, lease, tenant or '', engine or '', provisional_ms)
        for _, word in ipairs({ lease, class or 'cold', engine or '', tonumber(number) or 0 }) do
          granted[#granted + 1] = word
        end
      elseif not records[n] then
        gone[#gone + 1] = lease
      end
    end
  end
  return granted, gone
end

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
