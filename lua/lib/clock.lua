--- @include "lib/check"

-- The server's time as (epoch ms, epoch us). Each script reads it once. A test passes a time of its own in us; other
-- callers pass ''.
local function clock(injected)
  local us
  if injected == '' then
    local t = redis.call('TIME')
    us = t[1] * 1000000 + t[2]
  else
    us = whole_number(injected, 0, 9e15, 'now_us')
  end
  return math.floor(us / 1000), us
end
