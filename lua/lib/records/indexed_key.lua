-- The merge index of a slot: the key of a merging message and the message that waits under it.
--- @needs merge
--- @include "lib/member"

-- Return the merge key of a message if the index names this message, else nil. Then the field has
-- to be removed with the message. `key`: from its envelope, or nil.
local function indexed_key(key, id)
  local entry = key and redis.call('HGET', merge, key)
  if entry and string.sub(entry, 1, MEMBER) == id then
    return key
  end
  return nil
end
