-- Deleting messages for good.
--- @needs slot failures
--- @include "lib/records/envelope"
--- @include "lib/records/large_bodies"

-- Delete all that there is of messages that are in no queue any more. `audited`: whether the slot
-- is; `page`: how many records are read at once for that; `moved`: they are stored in another slot.
-- The first write needs no memory.
local function drop_for_good(audited, page, ids, now, moved)
  if audited then
    --- @include "lib/audit"
    account_for('accounted', read_numbers(ids, page), now)
  end
  drop_records(ids, moved)
  redis.call('HDEL', failures, unpack(ids))
  if redis.call('HEXISTS', slot, 'holds') == 1 then
    --- @include "lib/dead_letters/holds"
    drop_holds(ids)
  end
end
