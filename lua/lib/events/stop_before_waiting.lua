-- Ending a batch before a message that waits for an event, for takes of a slot in order.
--- @needs slot store bodies
--- @include "lib/events/waits"
--- @include "lib/writes"

-- Keep the messages before the first message that waits for an event and has time left. If no
-- message is before that message, the slot waits for it: nothing is taken until its event comes or
-- its time limit ends. Sets `is_stopped` of the take.
local function stop_before_waiting(take, batch)
  local ids = batch.ids
  if #ids == 0 then
    return
  end
  local names = wait_names(ids)
  local found = redis.call('HMGET', bodies, unpack(names))
  for i = 1, #ids do
    local key = awaited_key(found[i])
    local limit = 0
    if key then
      limit = limit_of(found[i])
    end
    if limit > take.now then
      take.limit, take.is_stopped = math.max(1, i - 1), true
      batch.ids = { unpack(ids, 1, i - 1) }
      if i == 1 then
        take.ordered_until = limit
        allow_oom(store)
        redis.call('HSET', slot, 'ordered', limit, 'holder', ids[1])
      end
      break
    end
  end
end
