-- waiter(fleet, lease, read) -> demand or nil. one who stands in line, as it joined
--
-- A record is text that redis-cli shows as it is: holder tenant class deadline joined request_id engines
-- warm. `read` is the record, where the caller has read it already. Who cannot be read is overdue.
local function waiter(fleet, lease, read)
  local record = read or redis.call('HGET', fleet.prefix .. 'line:waiting', lease)
  if not record then
    return nil
  end
  local holder, tenant, class, deadline, request_id, engines, warm =
    string.match(record, '^(%S+) (%S+) (%S+) (%S+) %S+ (%S+) (%S+) (%S+)')
  local demand = {
    lease = lease,
    holder = holder or '',
    tenant = tenant or '',
    class = class or 'cold',
    deadline = tonumber(deadline) or 0,
    request_id = request_id or '',
    engines = {},
    warm = {},
    seats = (engines or '') .. ' ' .. (warm or ''),
  }
  for name in string.gmatch(engines or '', '[^,]+') do
    demand.engines[#demand.engines + 1] = name
  end
  for name in string.gmatch(warm ~= '-' and warm or '', '[^,]+') do
    demand.warm[#demand.warm + 1] = name
  end
  return demand
end
