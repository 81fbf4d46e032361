-- freed: whether a slot in order has nothing in flight any more, and somebody sleeps until it has not.
-- `blocked` is the time until which. To be followed by wake.
local function freed(slot, prepare, blocked, now)
  if blocked and tonumber(blocked) > now and redis.call('ZCARD', prepare) == 0 then
    redis.call('HDEL', slot, 'blocked')
    return true
  end
  return false
end
