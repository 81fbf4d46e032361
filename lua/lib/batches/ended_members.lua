-- Finding members of batches that have ended, before they are stored again.
--- @needs results
--- @include "lib/results/keep_header"

-- Return the set of the positions of messages that are members of a batch and have ended: their end
-- was reported at most a minute ago, or not yet (member_ends). Return nil if there is none.
-- - batch: messages, as for store_messages
--- @inline
local function ended_members(batch)
  local given, at, heads_at = batch.given, batch.at, batch.at + batch.count - 1
  local names, rests, positions, ended = {}, {}, {}, nil
  for i = 1, batch.count do
    local rest = given[heads_at + 2 * i + 1]
    if string.find(rest, BATCH_HEADER, 1, true) then
      local n = #names + 1
      names[n], rests[n], positions[n] = 'b' .. given[at + i], rest, i
    end
  end
  local ends = #names > 0 and redis.call('HMGET', results, unpack(names))
  for n = 1, #names do
    -- Behind its letter, an end names the batch, as the header of the member does.
    if ends[n] and string.find(rests[n], string.sub(ends[n], 2), 1, true) then
      ended = ended or {}
      ended[positions[n]] = true
    end
  end
  return ended
end
