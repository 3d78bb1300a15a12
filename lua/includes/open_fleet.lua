-- open_fleet(meta, nonce, tick_ms, learning_ms) -> fleet. moves the lease clock, or starts an epoch
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
-- What moved is written by save_fleet, with which every script ends. `clock` and `wall_text` are `now` and
-- `wall` as text: Redis would print a number anew for each command that takes it.
local function open_fleet(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local ms = math.floor(time[2] / 1000)
  local wall = time[1] * 1000 + ms
  local epoch, clock, last, learning_until, grant =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'grant'))
  local prefix, now, before = string.sub(meta, 1, -5), tonumber(clock), tonumber(last)
  local known = epoch and now and before
  local wall_text, moved = last, not known or wall ~= before

  if not known then
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local top = redis.call('ZREVRANGE', prefix .. 'pool:total', 0, 0, 'WITHSCORES')[2]
    now = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant = nonce, now + learning_ms, 0
    redis.call('HSET', meta, 'schema', 1, 'epoch', epoch, 'grant', grant, 'tick_ms', tick_ms)
    redis.call('HSET', meta, 'learning_until', learning_until)
  elseif wall > before then
    now = now + math.min(wall - before, 2 * tick_ms)
  end
  if moved then
    wall_text = time[1] .. string.format('%03d', ms)
    clock = now == wall and wall_text or string.format('%.0f', now)
  end

  return {
    meta = meta,
    prefix = prefix,
    wall = wall,
    wall_text = wall_text,
    now = now,
    clock = clock,
    epoch = epoch,
    grant = tonumber(grant) or 0,
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - now),
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    moved = moved,
    caps = {},
  }
end
