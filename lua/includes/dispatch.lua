-- dispatch(fleet, limits, provisional_ms, most) -> boolean. grants free places to the fairest, and tells them
--
-- Called by whoever may have freed something, inside the same script: a place never lies idle while an
-- eligible waiter stands in line, and nobody else can take it first. Each grant is an ordinary provisional
-- lease, so a wake-up that is lost, or a waiter that just died, costs a place for a moment and never for
-- good. Dead waiters are dropped as they reach the head. A waiter whose engine or cold place is taken lets
-- others pass, also of its own tenant. Bounded by `most` grants and drops, and by how many it looks at who
-- cannot run; false: somebody was not looked at.
local function dispatch(fleet, limits, provisional_ms, most)
  local line = fleet.prefix .. 'line:'
  fleet.waiting = fleet.waiting or redis.call('HLEN', line .. 'waiting')
  if fleet.waiting == 0 then
    return true
  end
  local counted = {}
  fleet.counted, fleet.exact = counted, {}
  for tenant, left in pairs(fleet.freed or {}) do
    stand(fleet, limits, tenant, left)
  end
  local cap = fleet.learning_ms == 0 and (fleet.cap or caps(fleet, limits, '', {}))
  local looks, rounds, complete = 200, 8, true
  local passed, stuck, deep, nowhere, deeper, wakes = {}, {}, {}, {}, {}, {}
  while cap and not full(fleet, cap, 'total', 'total', cap.total) do
    local class, tenant = fairest(fleet, cap, passed, stuck)
    if not class and #deeper > 0 and rounds > 1 then
      -- The heads of all tenants come before the second of anybody.
      for _, place in ipairs(deeper) do
        stuck[place] = nil
      end
      rounds, passed, deeper = rounds - 1, {}, {}
      class, tenant = fairest(fleet, cap, passed, stuck)
    end
    if not class or most == 0 or looks == 0 then
      complete = not class and #deeper == 0
      break
    end
    local place = class .. ':' .. tenant
    local at = deep[place] or '0'
    local lease = redis.call('ZRANGE', line .. 'queue:' .. place, at, at)[1]
    local demand = lease and waiter(fleet, lease)
    local dead = not demand or demand.deadline <= fleet.now or not ticks(fleet, demand.holder)
    local engine, as, blocked
    -- Nothing is freed in here: where one found no seat, nobody finds one who would take the same.
    if not dead and not nowhere[demand.seats] then
      engine, as, blocked = seat(fleet, limits, caps(fleet, limits, tenant, {}), demand)
    end
    if not lease and at ~= '0' then
      stuck[place] = true
    elseif engine then
      step_out(fleet, lease, demand)
      local number = grant(fleet, demand, engine, as, provisional_ms)
      counted.total, counted.cold = counted.total + 1, counted.cold + (as == 'cold' and 1 or 0)
      counted['tenant:' .. tenant] = counted['tenant:' .. tenant] + 1
      counted['engine:' .. engine] = counted['engine:' .. engine] + 1
      local words = lease .. ' ' .. number .. ' ' .. as .. ' ' .. engine .. '\n'
      wakes[demand.holder] = (wakes[demand.holder] or '') .. words
    elseif dead then
      if lease and not step_out(fleet, lease, demand) then
        redis.call('ZREM', line .. 'queue:' .. place, lease)
      end
    elseif not (blocked and blocked.name == 'tenant:' .. tenant) then
      nowhere[demand.seats] = true
      looks, deep[place], stuck[place] = looks - 1, at + 1, true
      deeper[#deeper + 1] = place
    end
    if not stuck[place] then
      stand(fleet, limits, tenant, class)
      most, passed = most - 1, {}
    end
  end
  for holder, text in pairs(wakes) do
    redis.call('SPUBLISH', line .. 'wake:' .. holder, fleet.epoch .. '\n' .. text)
  end
  return complete
end
