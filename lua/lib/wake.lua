-- wake: tells sleeping consumers that this slot has something sooner than they know. `waiting` is the
-- time until which somebody said that it may be asleep; a busy topic has none, and pays nothing.
-- The channel comes from the caller: it belongs to the topic, and channels are not keys. By the time of the
-- PUBLISH everything is written, so a refusal must not stop the script: a Redis 7 user has no channels unless
-- the ACL names them. Consumers then find the work by their look once a second.
local function awaited(waiting, now)
  return waiting and tonumber(waiting) > now
end

local function wake(slot, channel, index)
  redis.call('HSET', slot, 'waiting', 0)
  redis.pcall('PUBLISH', channel, index)
end
