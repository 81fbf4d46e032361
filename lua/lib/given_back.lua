-- Whether messages may have been leased a second time.

-- Note that a message goes back to the StoreQueue, after so many deliveries. Until the next one does, a delivery that is
-- later than this is the only one of its message: ack relies on it.
local function note_given_back(slot)
  redis.call('HSET', slot, 'given_back', redis.call('HGET', slot, 'delivered') or 0)
end
