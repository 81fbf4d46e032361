-- The time.
--- @include "lib/bounds"

-- The time as (epoch ms, epoch us, epoch s in 10 digits): that of the server or, where the text is not '', of a test. The text
-- is not checked: lib/clock does that.
--- @inline
local function read_time(test_us)
  local at = redis.call('TIME')
  if test_us ~= '' then
    at = { string.format('%010d', tonumber(test_us) / SECOND_US), tonumber(test_us) % SECOND_US }
  end
  local us = at[1] * SECOND_US + at[2]
  return (us - us % 1000) / 1000, us, at[1]
end
