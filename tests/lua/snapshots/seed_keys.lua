#!lua flags=allow-oom
--[[
  seed_keys: write the hashes of callers' keys, from a config file or from a gateway's memory.

  A hash that is not there yet is always written. One that is there is overwritten only by values of a newer
  revision: what a live gateway still knows after Redis lost its data. A revoked key stays as an empty value,
  so an older file cannot bring it back; of two values of the same revision the revoked one holds.
  Idempotent. Cost: O(K) for K keys of this call.

  KEYS
    1  keys      hash     SHA-256 in hex -> tenant (empty: revoked); #epoch and #revision of this data

  ARGV
    1  nonce     string   the epoch to start when there is none
    2  revision  integer  of the values; 0 for those of a config file
    3+ hashes    string   two each: hash, tenant

  RETURNS
    KEYED  epoch  revision  changed
]]

local keys = KEYS[1]
local nonce, revision, hashes = ARGV[1], tonumber(ARGV[2]), 3

redis.call('HSETNX', keys, '#epoch', nonce)
local epoch, known = unpack(redis.call('HMGET', keys, '#epoch', '#revision'))
known = tonumber(known) or 0
local write = revision > known and 'HSET' or 'HSETNX'
local changed = 0
for i = hashes, #ARGV, 2 do
  local revoked = ARGV[i + 1] == '' and revision >= known
  changed = changed + redis.call(revoked and 'HSET' or write, keys, ARGV[i], ARGV[i + 1])
end
if revision > known then
  redis.call('HSET', keys, '#revision', revision)
end
return { 'KEYED', epoch, math.max(revision, known), changed }
