-- Read failure entries; lib/settle/attempts describes their bytes. These functions do not trust an
-- entry: a script that raised an error for an entry would stop all messages of its slot.

-- Return whether RMQ cannot have written an entry: it is too short, has unknown flags, or is
-- shorter than its items.
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

-- Return the number of retries left to a message that has failed, at most `most`. A damaged entry
-- may say more.
local function retries_in(entry, most)
  return math.max(0, math.min(most, (string.byte(entry, 1) or 256) - 1))
end
