-- Deleting messages for good.
--- @include "lib/large_bodies"

-- Delete all that there is of messages that are in no queue any more. `audit`: the key where the slot is audited, else nil;
-- `page`: how many records are read at once for that; `moved`: they are stored in another slot. The first write needs no memory.
local function drop_for_good(slot, records, bodies, failures, audit, page, ids, now, moved)
  if audit then
    --- @include "lib/audit"
    account_for(slot, audit, 'accounted', read_numbers(records, ids, page), now)
  end
  drop_records(slot, records, bodies, ids, moved)
  redis.call('HDEL', failures, unpack(ids))
  if redis.call('HEXISTS', slot, 'holds') == 1 then
    --- @include "lib/holds"
    drop_holds(slot, ids)
  end
end
