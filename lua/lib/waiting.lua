-- say_waiting: notes that somebody may be asleep for the next seconds, also while Redis is full.
local function say_waiting(slot, store, now)
  drain(store)
  redis.call('HSET', slot, 'waiting', now + 3000)
end
