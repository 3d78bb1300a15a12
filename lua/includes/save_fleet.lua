-- save_fleet(fleet) -> nothing. writes the clock and the number of the last grant, where they changed
local function save_fleet(fleet)
  if fleet.granted then
    redis.call('HSET', fleet.meta, 'clock', fleet.clock, 'last', fleet.wall_text, 'grant', fleet.granted)
  elseif fleet.moved then
    redis.call('HSET', fleet.meta, 'clock', fleet.clock, 'last', fleet.wall_text)
  end
end
