-- seat(fleet, limits, cap, demand) -> engine, class, full. where a demand could run now, and as what
--
-- An engine that holds a prefix of the prompt first; where none of those has room, any other, if the cold
-- pool has a place. Otherwise engine is nil and full = { name, live, limit } of the pool that is in the way,
-- the most specific one.
local function seat(fleet, limits, cap, demand)
  local blocked = full(fleet, cap, 'tenant', 'tenant:' .. demand.tenant, cap.tenant)
    or full(fleet, cap, 'total', 'total', cap.total)
  if blocked then
    return nil, nil, blocked
  end
  local engine = #demand.warm > 0 and pick_engine(fleet, limits, cap, demand.warm)
  if engine then
    return engine, 'warm'
  end
  engine, blocked = pick_engine(fleet, limits, cap, demand.engines)
  blocked = not engine and blocked or full(fleet, cap, 'cold', 'cold', cap.cold)
  if blocked then
    return nil, nil, blocked
  end
  return engine, 'cold'
end
