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

-- open_fleet(meta, nonce, tick_ms, learning_ms) -> fleet. moves the lease clock, or starts an epoch
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
-- What moved is written by save_fleet, with which every script ends. `clock` and `wall_text` are `now` and
-- `wall` as text: Redis would print a number anew for each command that takes it.
local function open_fleet(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local ms = math.floor(time[2] / 1000)
  local wall = time[1] * 1000 + ms
  local epoch, clock, last, learning_until, grant =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'grant'))
  local prefix, now, before = string.sub(meta, 1, -5), tonumber(clock), tonumber(last)
  local known = epoch and now and before
  local wall_text, moved = last, not known or wall ~= before

  if not known then
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local top = redis.call('ZREVRANGE', prefix .. 'pool:total', 0, 0, 'WITHSCORES')[2]
    now = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant = nonce, now + learning_ms, 0
    redis.call('HSET', meta, 'schema', 1, 'epoch', epoch, 'grant', grant, 'tick_ms', tick_ms)
    redis.call('HSET', meta, 'learning_until', learning_until)
  elseif wall > before then
    now = now + math.min(wall - before, 2 * tick_ms)
  end
  if moved then
    wall_text = time[1] .. string.format('%03d', ms)
    clock = now == wall and wall_text or string.format('%.0f', now)
  end

  return {
    meta = meta,
    prefix = prefix,
    wall = wall,
    wall_text = wall_text,
    now = now,
    clock = clock,
    epoch = epoch,
    grant = tonumber(grant) or 0,
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - now),
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
-- caps(fleet, limits, tenant, engines) -> caps or nil. the limits in force for a tenant; nil: there are none
--
-- Each is read once per script, those of `engines` with the first tenant's. `shadow` lists kinds of
-- pools (total, cold, tenant, engine) whose limits are only watched: they stay there for people to see and
-- admit everybody, so operators can learn a number before they enforce it.
local function caps(fleet, limits, tenant, engines)
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
    local asked = { own, weight }
    for n = 1, #engines do
      asked[n + 2] = 'engine:' .. engines[n]
    end
    local found = redis.call('HMGET', limits, 'total', 'cold', 'tenant_default', 'shadow', unpack(asked))
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
      weight = found[6],
      shadow = shadow and shadow ~= '' and ' ' .. string.gsub(shadow, '[^a-z]', ' ') .. ' ',
      engines = {},
    }
    for n = 1, #engines do
      cap.engines[engines[n]] = tonumber(found[n + 6]) or math.huge
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
-- put(key, score, member) -> nothing. adds to one of the line's sorted sets, or moves what is there
--
-- Up to 128 short members are one piece of memory to Redis, read from its front: a write among a hundred
-- costs five times what it costs among ten thousand. One member of more than 64 bytes makes the set a tree,
-- and a tree it stays while it has members.
local function put(key, score, member)
  if redis.call('ZADD', key, score, member) == 1 and redis.call('ZCARD', key) == 17 then
    local long = string.rep('-', 65)
    redis.call('ZADD', key, 0, long)
    redis.call('ZREM', key, long)
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
        share = math.min(math.floor(in_use * 1024 / math.max(tonumber(cap.weight) or 1, 0.001)), 1048575)
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

local fleet = open_fleet(meta, nonce, tick_ms, learning_ms)
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
