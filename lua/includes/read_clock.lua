-- read_clock(meta, nonce, tick_ms, learning_ms) -> values. moves the lease clock on, or starts an epoch
--
-- In this order: epoch, grant, now, clock, wall, wall_text, learning_ms, moved. The first half of a script
-- has them as they are; for what is shared by all scripts `open_fleet` makes a table of them.
--
-- The lease clock advances by at most two ticks from one script to the next, and never backwards. A wall
-- clock that is stepped, a Redis that was paused, restarted or replaced, and an outage of any length can
-- therefore age leases by two ticks at the most; while anybody calls, it runs at wall speed.
-- `clock` and `wall_text` are `now` and `wall` as text: Redis would print a number anew for each command that
-- takes it. What moved is for the caller to write. Whoever finds no clock starts an epoch.
local function read_clock(meta, nonce, tick_ms, learning_ms)
  local time = redis.call('TIME')
  local us = time[2] + 0
  local wall = time[1] * 1000 + (us - us % 1000) / 1000
  local found = redis.call('HMGET', meta, 'clock', 'last', 'grant', 'epoch', 'learning_until')
  local clock, last, grant, epoch, learning_until = found[1], found[2], found[3], found[4], found[5]
  local now = tonumber(clock)
  local before = clock == last and now or tonumber(last)

  if not (epoch and now and before) then
    -- The data is gone or never was: grant nothing until every holder had time to say what it runs. Leases
    -- that survived the loss of this one key must not outlive the new clock, whatever the wall clock says.
    local total = string.sub(meta, 1, -5) .. 'pool:total'
    local top = redis.call('ZREVRANGE', total, 0, 0, 'WITHSCORES')[2]
    now = math.max(wall, top and tonumber(top) - 6 * tick_ms or 0)
    epoch, learning_until, grant, before = nonce, now + learning_ms, 0, nil
    -- What each script reads and writes comes first: Redis looks through a small hash from its front.
    redis.call('HSET', meta, 'clock', now, 'last', wall, 'grant', grant, 'epoch', epoch)
    redis.call('HSET', meta, 'learning_until', learning_until, 'tick_ms', tick_ms, 'schema', 1)
  elseif wall > before then
    now = now + math.min(wall - before, 2 * tick_ms)
  end
  local wall_text, left = last, (tonumber(learning_until) or 0) - now
  if wall ~= before then
    wall_text = string.format('%d', wall)
    clock = now == wall and wall_text or string.format('%d', now)
  end
  return epoch, tonumber(grant) or 0, now, clock, wall, wall_text, left > 0 and left or 0, wall ~= before
end
