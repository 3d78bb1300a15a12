#!lua flags=allow-oom
--[[
  set_key: give a tenant a key, or revoke one.

  Only the key's SHA-256 is kept, with its last four characters and the time for people to tell keys apart.
  A revoked key stays as an empty value, so that no older file brings it back. Every gateway sees
  the new revision with its next look. Idempotent. Cost: O(K) for K keys of all tenants when one is
  revoked, else O(1).

  KEYS
    1  keys     hash    SHA-256 in hex -> tenant; #tenant:T, #key:ID, #epoch and #revision
    2  tenants  set     the names of those that exist
    3  events   stream  who did what to tenants and keys

  ARGV
    1  nonce    string  the epoch to start when there is none
    2  tenant   string
    3  who      string  for the event stream
    4  digest   string  the key's SHA-256 in hex; its first twelve characters are enough to revoke it
    5  last4    string  the key's last characters; empty: revoke it

  RETURNS
    KEYED    epoch  revision  changed
    UNKNOWN  epoch  revision             there is no such tenant, or it has no such key
]]

-- @include named
-- @include note
-- @include log_change

local keys, tenants, events = KEYS[1], KEYS[2], KEYS[3]
local nonce, tenant, who, digest, last4 = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]

redis.call('HSETNX', keys, '#epoch', nonce)
local epoch, revision = unpack(redis.call('HMGET', keys, '#epoch', '#revision'))
revision = tonumber(revision) or 0
if redis.call('SISMEMBER', tenants, tenant) == 0 then
  return { 'UNKNOWN', epoch, revision }
end
local id, changed = string.sub(digest, 1, 12), 0
if last4 ~= '' then
  if redis.call('HGET', keys, digest) ~= tenant then
    redis.call('HSET', keys, digest, tenant, '#key:' .. id, redis.call('TIME')[1] .. '000 ' .. last4)
    log_change(events, 'key_added', who, tenant, 'key:' .. id, '', tenant)
    changed = 1
  end
else
  local fields = redis.call('HGETALL', keys)
  for i = 1, #fields, 2 do
    local field = fields[i]
    if #field == 64 and string.sub(field, 1, 12) == id and fields[i + 1] == tenant then
      redis.call('HSET', keys, field, '')
      log_change(events, 'key_revoked', who, tenant, 'key:' .. id, tenant, '')
      changed = changed + 1
    end
  end
  if changed == 0 then
    return { 'UNKNOWN', epoch, revision }
  end
end
if changed > 0 then
  revision = redis.call('HINCRBY', keys, '#revision', 1)
end
return { 'KEYED', epoch, revision, changed }
