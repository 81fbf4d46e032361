-- Noting that a slot has messages that keep their results.
--- @needs slot

-- Set the field `outcomes` of the slot if one of these new records has the mark. Return whether one
-- has. `new_records`: ids and records in turn.
local function note_marks(new_records)
  --- @include "lib/results/keep_mark"
  for i = 2, #new_records, 2 do
    local record = new_records[i]
    if string.find(record, KEEP_HEADER, 1, true) and keep_of(record) then -- find is cheap
      redis.call('HSET', slot, 'outcomes', 1)
      return true
    end
  end
  return false
end
