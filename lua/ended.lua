#!lua
--[[
  ended: write down how requests ended, for whoever looks.

  Nothing is derived from it, and it is a stream of its own: many ends push no reclaim and no change out of the
  other. Sent again because its reply was lost, it writes its ends twice.
  Cost: O(E) for E ends of this call.

  KEYS
    1  ends  stream  who ended and why; capped

  ARGV
    1+ ends  string  three each: lease, tenant, reason

  RETURNS
    NOTED  count
]]

-- @include named
-- @include note

local ends = KEYS[1]
for i = 1, #ARGV, 3 do
  note(ends, 'kind lease tenant reason', { 'ended', ARGV[i], ARGV[i + 1], ARGV[i + 2] })
end
return { 'NOTED', #ARGV / 3 }
