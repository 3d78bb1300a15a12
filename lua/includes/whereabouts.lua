-- whereabouts(fleet, leases, provisional_ms) -> granted, gone. what became of those who stood in line
--
-- granted has four words for each: lease, class, engine, grant; gone are those whom nothing knows any more.
local function whereabouts(fleet, leases, provisional_ms)
  local granted, gone = {}, {}
  for first = 1, #leases, 500 do
    local some = { unpack(leases, first, math.min(first + 499, #leases)) }
    local expiries = redis.call('ZMSCORE', fleet.prefix .. 'pool:total', unpack(some))
    local records = redis.call('HMGET', fleet.prefix .. 'line:waiting', unpack(some))
    for n, lease in ipairs(some) do
      if expiries[n] and tonumber(expiries[n]) > fleet.now then
        local record = fleet.prefix .. 'lease:' .. lease
        local facts = redis.call('HMGET', record, 'class', 'engine', 'grant', 'tenant')
        local class, engine, number, tenant = unpack(facts)
        lengthen(fleet, lease, tenant or '', engine or '', provisional_ms)
        for _, word in ipairs({ lease, class or 'cold', engine or '', tonumber(number) or 0 }) do
          granted[#granted + 1] = word
        end
      elseif not records[n] then
        gone[#gone + 1] = lease
      end
    end
  end
  return granted, gone
end
