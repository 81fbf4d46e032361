-- Noting offloaded bodies, which lib/records/large_bodies describes.
--- @needs slot

-- Note in the slot that it has offloaded bodies, if one of these new records has an offloaded body.
-- Return whether one has. `new_records`: ids and records in turn.
local function note_offloaded(new_records)
  --- @include "lib/records/large_bodies"
  for i = 2, #new_records, 2 do
    local reference = offloaded_reference(new_records[i])
    if reference then
      redis.call('HINCRBY', slot, 'offloaded', 0) -- changes nothing if the field exists
      return true
    end
  end
  return false
end
