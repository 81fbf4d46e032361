-- Remove deliveries that are settled.
--- @needs prepare records failures

-- Remove at least one delivery of the caller, with the records. Return how many were removed. The
-- first write frees memory.
--   has_bodies: true if the slot has large bodies, or has had offloaded bodies
--   failed: number of messages of the slot that have failed
--   low, high: a range of receipts that has exactly these deliveries, or nil
--   bodies_move_to_history: false, or another value if the messages are in the history, which then
--     has their offloaded bodies
--- @inline
local function remove_deliveries(has_bodies, ids, failed, low, high, bodies_move_to_history)
  -- Removing the records also notices a wrong type there, before anything else is removed.
  if has_bodies then
    --- @include "lib/records/drop_records"
    drop_records(ids, bodies_move_to_history)
  else
    redis.call('HDEL', records, unpack(ids))
  end
  local removed
  if high then
    removed = redis.call('ZREMRANGEBYSCORE', prepare, low, high)
  else
    removed = redis.call('ZREM', prepare, unpack(ids))
  end
  if failed > 0 then
    redis.call('HDEL', failures, unpack(ids))
  end
  return removed
end
