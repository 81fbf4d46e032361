-- Deleting messages for good.
--- @needs slot failures
--- @include "lib/records/envelope"
--- @include "lib/records/drop_records"

-- Delete everything that belongs to messages which are no longer in a queue. The first write needs
-- no memory.
-- - audited: the field of the slot
-- - page: how many records are read at once, if the slot is audited
-- - are_moved: true if the messages are stored in another slot
local function drop_for_good(audited, page, ids, now, are_moved)
  if audited then
    --- @include "lib/audit"
    account_for('accounted', read_numbers(ids, page), now)
  end
  drop_records(ids, are_moved)
  redis.call('HDEL', failures, unpack(ids))
  if redis.call('HEXISTS', slot, 'holds') == 1 then
    --- @include "lib/dead_letters/holds"
    drop_holds(ids)
  end
end
