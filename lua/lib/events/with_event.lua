-- Adding events to the steps of a message.
--- @include "lib/records/steps"

-- Return the steps of a message with an event as the last item, in place of an earlier event with
-- its key. `entry`: the steps, or ''
--   state: e the event came, t the time limit ended
local function with_event(entry, state, key, at, data)
  local from, to = find_item(entry, key, EVENTS)
  local item = item_of(state, key, at, data)
  return string.sub(entry, 1, from - 1) .. string.sub(entry, to) .. item
end
