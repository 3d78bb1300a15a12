-- whereabouts(fleet, leases) -> granted, gone. what became of those who stood in line, if anything did
--
-- granted has four words for each: lease, class, engine, grant; gone are those whom nothing knows any more.
local function whereabouts(fleet, leases)
  local granted, gone = {}, {}
  for _, lease in ipairs(leases) do
    local expiry = redis.call('ZSCORE', fleet.prefix .. 'pool:total', lease)
    if expiry and tonumber(expiry) > fleet.now then
      local record = fleet.prefix .. 'lease:' .. lease
      local class, engine, number = unpack(redis.call('HMGET', record, 'class', 'engine', 'grant'))
      for _, word in ipairs({ lease, class or 'cold', engine or '', tonumber(number) or 0 }) do
        granted[#granted + 1] = word
      end
    elseif redis.call('HEXISTS', fleet.prefix .. 'line:waiting', lease) == 0 then
      gone[#gone + 1] = lease
    end
  end
  return granted, gone
end
