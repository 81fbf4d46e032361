-- What other scripts read of a failure entry, whose bytes lib/settle/attempts.lua describes.
-- Nothing here trusts an entry: a script that raised on one would hold up all messages of its slot.

-- Whether an entry is none that RMQ has written: too short, with unknown flags, or shorter than its
-- items.
local function is_damaged(entry)
  local size, flags = #entry, string.byte(entry, 4)
  if size < 10 or flags % 8 > 1 or flags > 15 then
    return true
  end
  if flags % 2 == 0 then
    return false
  end
  local high, low = string.byte(entry, 14, 15)
  return not low or size < 15 + high * 256 + low
end

-- The retries left to a message that has failed: `most` at most, which a damaged entry may exceed.
local function retries_in(entry, most)
  return math.max(0, math.min(most, (string.byte(entry, 1) or 256) - 1))
end
