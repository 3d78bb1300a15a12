-- open_fleet(meta, epoch, grant, now, clock, wall, wall_text, learning_ms, moved) -> fleet. a table
--
-- Takes what `read_clock` found. Whoever opens it ends with `save_fleet`, which writes what moved.
local function open_fleet(meta, epoch, grant, now, clock, wall, wall_text, learning_ms, moved)
  return {
    meta = meta,
    prefix = string.sub(meta, 1, -5),
    epoch = epoch,
    grant = grant,
    now = now,
    clock = clock,
    wall = wall,
    wall_text = wall_text,
    learning_ms = learning_ms,
    -- Many scripts share a millisecond; those that find the clock right write nothing.
    moved = moved,
    caps = {},
  }
end
