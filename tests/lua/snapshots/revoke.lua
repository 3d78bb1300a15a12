#!lua flags=allow-oom
--[[
  revoke: end one request, running or waiting, by its lease id or by its request id, from any replica.

  Its gateway is told by a message and, should that be lost, by its next tick; it cuts the stream and releases
  the permit as on any other end. One that waits leaves the line here. Idempotent.
  Cost: O(G) for G gateways when asked by request id, else O(log N).

  KEYS
    1  meta      hash    epoch, clock, last, learning_until, grant
    2  limits    hash    tenant_default, tenant:T, weight:T
    3  total     zset    lease -> expiry on the lease clock, ms
    4  gateways  zset    holder -> session expiry
    5  events    stream  who ended what

  ARGV
    1  nonce        string   the epoch to start when there is none
    2  tick_ms      integer
    3  learning_ms  integer
    4  lease        string   the lease id; empty: look for request_id
    5  request_id   string   the last part of a gateway's lease id; empty: lease is given
    6  tenant       string   only if it is this tenant's; empty: anybody's
    7  reason       string   the end reason: revoked, or user_stop
    8  who          string   for the event stream

  RETURNS
    REVOKED  epoch  grant  lease  where      it was `live`, or stood in `line`
    UNKNOWN  epoch  grant                    no such request, or not this tenant's
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

local meta, limits, total, gateways, events = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local nonce, tick_ms, learning_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local lease, request_id, tenant, reason, who = ARGV[4], ARGV[5], ARGV[6], ARGV[7], ARGV[8]

local fleet = open_fleet(meta, read_clock(meta, nonce, tick_ms, learning_ms))
local candidates = { lease }
if lease == '' then
  candidates = redis.call('ZRANGE', gateways, 0, 999)
  for n, holder in ipairs(candidates) do
    candidates[n] = holder .. '~' .. request_id
  end
end
for _, candidate in ipairs(candidates) do
  local record = fleet.prefix .. 'lease:' .. candidate
  local owner, holder = unpack(redis.call('HMGET', record, 'tenant', 'holder'))
  local waits = not owner and waiter(fleet, candidate)
  local where = owner and redis.call('ZSCORE', total, candidate) and 'live' or waits and 'line'
  if where and (tenant == '' or tenant == (owner or waits.tenant)) then
    if where == 'live' then
      redis.call('HSET', record, 'cut', reason)
    else
      holder = waits.holder
      stand(fleet, limits, step_out(fleet, candidate, waits), 'any')
    end
    note(events, 'kind lease tenant reason who', { 'revoked', candidate, owner or waits.tenant, reason, who })
    local words = fleet.epoch .. '\n' .. candidate .. ' 0 cut ' .. reason
    redis.call('SPUBLISH', fleet.prefix .. 'line:wake:' .. holder, words)
    save_fleet(fleet)
    return { 'REVOKED', fleet.epoch, fleet.grant, candidate, where }
  end
end
save_fleet(fleet)
return { 'UNKNOWN', fleet.epoch, fleet.grant }
