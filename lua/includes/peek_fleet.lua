-- peek_fleet(meta) -> fleet. what open_fleet would say, writing nothing
local function peek_fleet(meta)
  local time = redis.call('TIME')
  local wall = time[1] * 1000 + math.floor(time[2] / 1000)
  local epoch, clock, last, learning_until, tick_ms =
    unpack(redis.call('HMGET', meta, 'epoch', 'clock', 'last', 'learning_until', 'tick_ms'))
  local since = math.max(wall - (tonumber(last) or wall), 0)
  local now = (tonumber(clock) or wall) + math.min(since, 2 * (tonumber(tick_ms) or 0))
  return {
    prefix = string.sub(meta, 1, -5),
    now = now,
    clock = string.format('%.0f', now),
    epoch = epoch or '',
    learning_ms = math.max(0, (tonumber(learning_until) or 0) - now),
  }
end
