-- The place of a message that goes back to the StoreQueue.
--- @include "lib/records/record_bytes"
--- @include "lib/scores/score_ranges"

-- Return the priority of a message, or when it was due if it has no priority. Return nil if there
-- is no record, or it is cut short or damaged.
--- @inline
local function place_in_record(record)
  if not record or #record < FIXED then
    return nil
  end
  local place = priority_of(record)
  if place == 0 and #record >= FIXED + TIME_BYTES then
    place = read48(record, FIXED + 1)
  end
  if place < PRIORITY_MIN or place >= PRIORITY_END and place < TIMED_MIN then
    return nil
  end
  return place
end
