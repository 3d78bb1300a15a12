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
  if fleet.learning_ms > 0 or fleet.waiting == 0 then
    return true
  end
  local looks, rounds, complete = 200, 8, true
  local passed, stuck, deep, nowhere = { warm = 0, cold = 0 }, {}, {}, {}
  local wakes, deeper = {}, {}
  local total = caps(limits, '')
  local free = total and room(total, 'total', live(fleet.prefix .. 'pool:total', fleet.now)) or 0
  local cold_full = total and room(total, 'cold', live(fleet.prefix .. 'pool:cold', fleet.now)) <= 0
  while free > 0 do
    local warm = fairest(line, 'warm', passed, stuck)
    local cold = cold_full and {} or fairest(line, 'cold', passed, stuck)
    if #warm == 0 and #cold == 0 then
      -- The heads of all tenants come before the second of anybody.
      rounds = rounds - 1
      if #deeper == 0 or rounds == 0 then
        complete = #deeper == 0
        break
      end
      for _, place in ipairs(deeper) do
        stuck[place] = nil
      end
      passed, deeper = { warm = 0, cold = 0 }, {}
      warm = fairest(line, 'warm', passed, stuck)
      cold = cold_full and {} or fairest(line, 'cold', passed, stuck)
    end
    if most == 0 or looks == 0 or (#warm == 0 and #cold == 0) then
      complete = #warm == 0 and #cold == 0
      break
    end
    local class = (#cold == 0 or (#warm > 0 and tonumber(warm[2]) <= tonumber(cold[2]))) and 'warm' or 'cold'
    local tenant = class == 'warm' and warm[1] or cold[1]
    local place = class .. ':' .. tenant
    local at = deep[place] or 0
    local lease = redis.call('ZRANGE', line .. 'queue:' .. place, at, at)[1]
    local demand = lease and waiter(fleet, lease)
    if not lease and at > 0 then
      stuck[place] = true
    elseif
      not demand
      or demand.deadline <= fleet.now
      or not lives(fleet.prefix .. 'gateways', lease, fleet.now)
    then
      if lease and not step_out(fleet, lease) then
        redis.call('ZREM', line .. 'queue:' .. place, lease)
      end
      stand(fleet, limits, tenant)
      most, passed = most - 1, { warm = 0, cold = 0 }
    else
      local cap = caps(limits, tenant)
      local engine, as
      -- Nothing is freed in here: where one found no seat, nobody finds one who would take the same.
      if not nowhere[demand.seats] then
        engine, as = seat(fleet, limits, cap, demand.engines, demand.warm)
      end
      if room(cap, 'tenant', live(fleet.prefix .. 'pool:tenant:' .. tenant, fleet.now)) <= 0 then
        stand(fleet, limits, tenant)
        most, passed = most - 1, { warm = 0, cold = 0 }
      elseif not engine then
        nowhere[demand.seats] = true
        looks, deep[place], stuck[place] = looks - 1, at + 1, true
        deeper[#deeper + 1] = place
      else
        step_out(fleet, lease, demand)
        local number = grant(fleet, demand, engine, as, provisional_ms)
        stand(fleet, limits, tenant)
        local words = table.concat({ lease, number, as, engine }, ' ')
        wakes[demand.holder] = (wakes[demand.holder] or '') .. words .. '\n'
        most, free, passed = most - 1, free - 1, { warm = 0, cold = 0 }
        cold_full = free > 0 and room(total, 'cold', live(fleet.prefix .. 'pool:cold', fleet.now)) <= 0
      end
    end
  end
  for holder, text in pairs(wakes) do
    redis.call('SPUBLISH', line .. 'wake:' .. holder, fleet.epoch .. '\n' .. text)
  end
  return complete
end
