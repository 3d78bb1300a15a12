-- dispatch(fleet, limits, provisional_ms, most) -> integer. grants free places to the fairest waiters, and tells them
--
-- Called by whoever may have freed something, inside the same script: a place never lies idle while an eligible
-- waiter stands in line, and nobody else can take it first. Each grant is an ordinary provisional lease, so a
-- wake-up that is lost, or a waiter that just died, costs a place for a moment and never for good. Dead waiters
-- are dropped as they reach the head. A waiter whose engine or cold place is taken lets others pass.
local function dispatch(fleet, limits, provisional_ms, most)
  local line = fleet.prefix .. 'line:'
  if fleet.learning_ms > 0 or redis.call('EXISTS', line .. 'waiting') == 0 then
    return 0
  end
  local granted, wakes, passed = 0, {}, { warm = 0, cold = 0 }
  local total = caps(limits, '')
  local free = total and room(total, 'total', live(fleet.prefix .. 'pool:total', fleet.now)) or 0
  local cold_full = total and room(total, 'cold', live(fleet.prefix .. 'pool:cold', fleet.now)) <= 0
  while free > 0 and most > 0 do
    most = most - 1
    local warm = redis.call('ZRANGE', line .. 'next:warm', passed.warm, passed.warm, 'WITHSCORES')
    local cold = cold_full and {}
      or redis.call('ZRANGE', line .. 'next:cold', passed.cold, passed.cold, 'WITHSCORES')
    if #warm == 0 and #cold == 0 then
      break
    end
    local class = (#cold == 0 or (#warm > 0 and tonumber(warm[2]) <= tonumber(cold[2]))) and 'warm' or 'cold'
    local tenant = class == 'warm' and warm[1] or cold[1]
    local lease = redis.call('ZRANGE', line .. 'queue:' .. class .. ':' .. tenant, 0, 0)[1]
    local demand = lease and waiter(fleet, lease)
    if
      not demand
      or demand.deadline <= fleet.now
      or not lives(fleet.prefix .. 'gateways', lease, fleet.now)
    then
      if lease and not step_out(fleet, lease) then
        redis.call('ZREM', line .. 'queue:' .. class .. ':' .. tenant, lease)
      end
      stand(fleet, limits, tenant)
    else
      local cap = caps(limits, tenant)
      local engine, as = seat(fleet, limits, cap, demand.engines, demand.warm)
      if room(cap, 'tenant', live(fleet.prefix .. 'pool:tenant:' .. tenant, fleet.now)) <= 0 then
        stand(fleet, limits, tenant)
      elseif not engine then
        passed[class] = passed[class] + 1
      else
        step_out(fleet, lease)
        local number = grant(fleet, demand, engine, as, provisional_ms)
        stand(fleet, limits, tenant)
        wakes[demand.holder] = (wakes[demand.holder] or '')
          .. lease
          .. ' '
          .. number
          .. ' '
          .. as
          .. ' '
          .. engine
          .. '\n'
        granted, free = granted + 1, free - 1
        cold_full = room(total, 'cold', live(fleet.prefix .. 'pool:cold', fleet.now)) <= 0
      end
    end
  end
  for holder, text in pairs(wakes) do
    redis.call('PUBLISH', line .. 'wake:' .. holder, fleet.epoch .. '\n' .. text)
  end
  return granted
end
