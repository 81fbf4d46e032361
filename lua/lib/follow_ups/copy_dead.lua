-- Copies of dead letters for another topic, which the setting `dead_to` names.
--- @needs slot records
--- @include "lib/follow_ups/pending"
--- @include "lib/records/record"
local OF_DEAD = '!' -- behind the number of the entry of a copy

-- Store a pending entry for each message that dies, with its record. Any process may send these
-- entries at once.
--   died: `ids`, `reason` as for add_dead, and `dead_to`, the target
local function copy_dead(died, now)
  local ids, chunk = died.ids, tonumber(redis.call('HGET', slot, 'chunk'))
  for from = 1, #ids, chunk do
    local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + chunk - 1)))
    local copies = {}
    for i = 1, #batch do
      local record = batch[i]
      if record and #record >= FIXED then
        copies[#copies + 1] = died.reason .. ids[from + i - 1] .. record
      end
    end
    if #copies > 0 then
      local given = { { target = died.dead_to, messages = copies } }
      add_pending(given, redis.call('HGET', slot, 'follow_ups'), now, 1000 * now, OF_DEAD, 0)
    end
  end
end
