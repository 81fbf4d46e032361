-- The time.
--- @include "lib/bounds"

-- Return the time as epoch ms, epoch us, and epoch s in 10 digits. It is the server's time, or the
-- time of a test if the text is not ''. The caller checks the text, as lib/clock does.
--- @inline
local function read_time(test_us)
  local at = redis.call('TIME')
  if test_us ~= '' then
    at = { string.format('%010d', tonumber(test_us) / SECOND_US), tonumber(test_us) % SECOND_US }
  end
  local us = at[1] * SECOND_US + at[2]
  return (us - us % 1000) / 1000, us, at[1]
end
