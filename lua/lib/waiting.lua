-- say_waiting: notes that somebody may be asleep for the next seconds, also while Redis is full. `note` is
-- the field, as soon tells it.
local function say_waiting(slot, store, note, now)
  drain(store)
  redis.call('HSET', slot, note, now + 3000)
end
