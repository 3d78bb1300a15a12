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

-- @include read_clock
-- @include open_fleet
-- @include save_fleet
-- @include named
-- @include note
-- @include live
-- @include caps
-- @include full
-- @include waiter
-- @include step_out
-- @include tree
-- @include put
-- @include stand

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
