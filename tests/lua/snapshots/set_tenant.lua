#!lua flags=allow-oom
--[[
  set_tenant: note that a tenant exists, or remove it with all its keys.

  A removed tenant and its keys stay as empty values, so that no older file brings them back. Its quotas are
  in the limits of each fleet; see set_limits. Streams that run are not touched. Idempotent.
  Cost: O(K) for K keys of all tenants when it is removed, else O(1).

  KEYS
    1  keys     hash    SHA-256 in hex -> tenant; #tenant:T, #key:ID, #epoch and #revision
    2  tenants  set     the names of those that exist
    3  events   stream  who did what to tenants and keys

  ARGV
    1  nonce    string  the epoch to start when there is none
    2  tenant   string
    3  who      string  for the event stream
    4  mode     string  add or remove

  RETURNS
    KEYED    epoch  revision  changed    how many values changed; 0: it was so already
    UNKNOWN  epoch  revision             there is no such tenant to remove
]]

-- log_change(events, kind, who, tenant, field, old, new) -> nothing. one line of history, capped like all
local function log_change(events, kind, who, tenant, field, old, new)
  redis.call(
    'XADD',
    events,
    'MAXLEN',
    '~',
    10000,
    '*',
    'kind',
    kind,
    'who',
    who,
    'tenant',
    tenant,
    'field',
    field,
    'old',
    old,
    'new',
    new
  )
end

local keys, tenants, events = KEYS[1], KEYS[2], KEYS[3]
local nonce, tenant, who, mode = ARGV[1], ARGV[2], ARGV[3], ARGV[4]

redis.call('HSETNX', keys, '#epoch', nonce)
local epoch, revision = unpack(redis.call('HMGET', keys, '#epoch', '#revision'))
revision = tonumber(revision) or 0
local exists = redis.call('SISMEMBER', tenants, tenant) == 1
if mode == 'add' then
  if exists then
    return { 'KEYED', epoch, revision, 0 }
  end
  revision = redis.call('HINCRBY', keys, '#revision', 1)
  redis.call('HSET', keys, '#tenant:' .. tenant, redis.call('TIME')[1] .. '000')
  redis.call('SADD', tenants, tenant)
  log_change(events, 'tenant_added', who, tenant, 'tenant', '', tenant)
  return { 'KEYED', epoch, revision, 1 }
end

if not exists then
  return { 'UNKNOWN', epoch, revision }
end
local fields, changed = redis.call('HGETALL', keys), 1
for i = 1, #fields, 2 do
  local field = fields[i]
  if fields[i + 1] == tenant and #field == 64 then
    redis.call('HSET', keys, field, '')
    log_change(events, 'key_revoked', who, tenant, 'key:' .. string.sub(field, 1, 12), tenant, '')
    changed = changed + 1
  end
end
revision = redis.call('HINCRBY', keys, '#revision', 1)
redis.call('HSET', keys, '#tenant:' .. tenant, '')
redis.call('SREM', tenants, tenant)
log_change(events, 'tenant_removed', who, tenant, 'tenant', tenant, '')
return { 'KEYED', epoch, revision, changed }
