-- Making room in a full slot whose topic drops the lowest priority.
--- @needs slot store records failures merge audit bodies results keeping
--- @include "lib/bounds"
--- @include "lib/records/drop_for_good"
--- @include "lib/records/record_bytes"
--- @include "lib/results/note_outcomes"
--- @include "lib/scores/score_ranges"
local AUDIT_PAGE = 100 -- records that are read at once, if the slot is audited

-- Return a function that drops waiting messages of the lowest priorities, all below the priorities
-- of the new messages. Return nil if that does not make enough room. Everything is read and checked
-- here; the function only writes. A slot may have more messages than its capacity, because leases
-- expired or the topic got another max_length. Such a slot shrinks by MOST messages at a time.
--
-- - excess: number of messages above the capacity, with the new messages
-- - added: ids and records (or their heads) of the new messages in turn
local function plan_drop_lowest(excess, added, now)
  local least = PRIORITY_END
  local timed_priority = tonumber(redis.call('HGET', slot, 'timed_priority') or PRIORITY_END)
  for i = 2, #added, 2 do
    local priority = priority_of(added[i])
    least = math.min(least, priority > 0 and priority or timed_priority)
  end
  local lowest = redis.call('ZRANGEBYSCORE', store, PRIORITY_MIN, '(' .. least, 'LIMIT', 0,
    math.min(excess, MOST))
  if #lowest < math.min(excess, #added / 2) then
    return nil
  end
  --- @include "lib/records/envelope"
  --- @include "lib/records/indexed_key"
  local merge_keys = {}
  redis.call('HLEN', failures)
  redis.call('HLEN', bodies)
  redis.call('HLEN', results)
  redis.call('ZCARD', keeping)
  local audited = redis.call('ZCARD', audit) > 0
  if redis.call('HLEN', merge) > 0 then
    for i = 1, #lowest do
      local _, _, key = envelope(redis.call('HGET', records, lowest[i]) or '')
      merge_keys[#merge_keys + 1] = indexed_key(key, lowest[i])
    end
  end
  return function()
    redis.call('ZREM', store, unpack(lowest))
    if #merge_keys > 0 then
      redis.call('HDEL', merge, unpack(merge_keys))
    end
    note_outcomes(lowest, now, 'o')
    drop_for_good(audited, AUDIT_PAGE, lowest, now)
    redis.call('HINCRBY', slot, 'dropped', #lowest)
  end
end
