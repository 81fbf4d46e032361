-- Counting messages that got events.
--- @needs slot

-- Note in the counters of the slot that the waits of messages are over. `ended`: number of these
-- messages; `without_steps`: how many of them had no steps before.
--- @inline
local function note_events(ended, without_steps)
  if without_steps > 0 then
    redis.call('HINCRBY', slot, 'steps', without_steps)
    redis.call('HINCRBY', slot, 'large', without_steps)
  end
  if ended > 0 then
    redis.call('HINCRBY', slot, 'suspended', -ended)
  end
end
