-- The time of the script.
--- @include "lib/check"
--- @include "lib/read_time"

-- Return the server's time as epoch ms and epoch us. Each script reads it once. A test passes its
-- own time in us, other callers pass ''.
--- @inline
local function clock(test_us)
  if test_us ~= '' then
    whole_number(test_us, 0, NUMBER_MOST, 'now_us')
  end
  local ms, us = read_time(test_us)
  return ms, us
end
