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
-- live(pool, now) -> integer. the one way to count: members whose lease is not past, so no reaper is needed
local function live(pool, now)
  return redis.call('ZCOUNT', pool, '(' .. string.format('%.0f', now), '+inf')
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
      stand(fleet, limits, step_out(fleet, candidate))
    end
    note(events, 'kind lease tenant reason who', { 'revoked', candidate, owner or waits.tenant, reason, who })
    local words = fleet.epoch .. '\n' .. candidate .. ' 0 cut ' .. reason
    redis.call('SPUBLISH', fleet.prefix .. 'line:wake:' .. holder, words)
    return { 'REVOKED', fleet.epoch, fleet.grant, candidate, where }
  end
end
return { 'UNKNOWN', fleet.epoch, fleet.grant }
