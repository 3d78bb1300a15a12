#!lua
--[[
  ended: write down how requests ended, for whoever looks.

  Nothing is derived from it, and it is a stream of its own: many ends push no reclaim and no change out of
  the other. Sent again because its reply was lost, it writes its ends twice.
  Cost: O(L) for L leases of this call.

  KEYS
    1  ends  stream  who ended and why; capped

  ARGV
    1+ leases  string  three each: lease, tenant, reason

  RETURNS
    NOTED  count
]]

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

local ends, leases = KEYS[1], 1
for i = leases, #ARGV, 3 do
  note(ends, 'kind lease tenant reason', { 'ended', ARGV[i], ARGV[i + 1], ARGV[i + 2] })
end
return { 'NOTED', #ARGV / 3 }
