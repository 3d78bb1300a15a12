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

-- @include named
-- @include note

local ends, leases = KEYS[1], 1
for i = leases, #ARGV, 3 do
  note(ends, 'kind lease tenant reason', { 'ended', ARGV[i], ARGV[i + 1], ARGV[i + 2] })
end
return { 'NOTED', #ARGV / 3 }
