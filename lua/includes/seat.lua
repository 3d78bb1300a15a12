-- seat(fleet, limits, cap, engines, warm) -> engine, class, full. where a demand could run now, and as what
--
-- An engine that holds a prefix of the prompt first; where none of those has room, any other, if the cold
-- pool has a place. Otherwise engine is nil and full = { name, live, limit } of the pool that is in the way.
local function seat(fleet, limits, cap, engines, warm)
  local engine = pick_engine(fleet, limits, cap, warm)
  if engine then
    return engine, 'warm'
  end
  local full
  engine, full = pick_engine(fleet, limits, cap, engines)
  if not engine then
    return nil, nil, { name = 'engine:' .. full.name, live = full.live, limit = full.limit }
  end
  local in_use = live(fleet.prefix .. 'pool:cold', fleet.now)
  if room(cap, 'cold', in_use) <= 0 then
    return nil, nil, { name = 'cold', live = in_use, limit = cap.cold }
  end
  return engine, 'cold'
end
