-- Counting messages that got events.
--- @needs slot

-- Note in the counters of the slot that the waits of messages are over. `ended`: number of these
-- messages; `new`: how many of them had no steps before.
--- @inline
local function note_events(ended, new)
  if new > 0 then
    redis.call('HINCRBY', slot, 'steps', new)
    redis.call('HINCRBY', slot, 'large', new)
  end
  if ended > 0 then
    redis.call('HINCRBY', slot, 'suspended', -ended)
  end
end
