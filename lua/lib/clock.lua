-- clock: the server's time as (epoch ms, epoch us), read once by each script. A test passes its own
-- time in microseconds; everybody else passes ''.
local function clock(injected)
  local us
  if injected == '' then
    local t = redis.call('TIME')
    us = t[1] * 1000000 + t[2]
  else
    us = whole(injected, 0, 9e15, 'now_us')
  end
  return math.floor(us / 1000), us
end
