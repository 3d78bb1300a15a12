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
