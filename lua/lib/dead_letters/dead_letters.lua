-- Add messages to the DeadQueue, and drop old dead letters.
--- @needs slot dead failures bodies
--- @include "lib/follow_ups/copy_dead"
--- @include "lib/settle/attempts"
--- @include "lib/records/drop_for_good"
--- @include "lib/results/note_outcomes"
local OLD_RECORDS = 10 -- of old dead letters, that are read at once
local OLD_LEAST = 10 -- how many old dead letters a call may drop, at least

-- Drop up to `limit` dead letters that died at `before` or earlier, count them in the slot, and
-- return how many were dropped. The first write frees memory. `audited`: the field of the slot.
local function drop_old_dead(audited, before, now, limit)
  local ids = redis.call('ZRANGEBYSCORE', dead, '-inf', before, 'LIMIT', 0, limit)
  if #ids > 0 then
    redis.call('ZREM', dead, unpack(ids))
    note_outcomes(ids, now, 'o', { members_only = true })
    drop_for_good(audited, OLD_RECORDS, ids, now)
    redis.call('HINCRBY', slot, 'dead_dropped', #ids)
  end
  return #ids
end

-- Add messages to the DeadQueue, which ends them. Their records stay. If the topic has a retention,
-- some dead letters past it are dropped: more than are added.
--   died: `ids`; for each the number of its deliveries (`delivery_counts`); `reason`, a letter
--     (lib/settle/attempts); `details`: the text of each error, or one text for all; `dead_to`, the
--     field of the slot, if the messages are copied there
--   retention: ms, or 0
local function add_dead(died, audited, retention, now)
  local ids, counts, details, reason = died.ids, died.delivery_counts, died.details, died.reason
  local is_one_text = type(details) ~= 'table'
  for first = 1, #ids, ENTRIES_AT_ONCE do
    local last = math.min(first + ENTRIES_AT_ONCE - 1, #ids)
    local entries = redis.call('HMGET', failures, unpack(ids, first, last))
    local times, noted = {}, {}
    for i = first, last do
      local text = details
      if not is_one_text then
        text = details[i]
      end
      local entry = failure_entry(entries[i - first + 1], 0, counts[i], reason, text, now)
      times[#times + 1], times[#times + 2] = now, ids[i]
      noted[#noted + 1], noted[#noted + 2] = ids[i], entry
    end
    redis.call('ZADD', dead, unpack(times))
    redis.call('HSET', failures, unpack(noted))
  end
  redis.call('HINCRBY', slot, 'dead_lettered', #ids)
  if redis.call('HEXISTS', slot, 'waited') == 1 then
    --- @include "lib/events/end_waits"
    local fields, found = end_waits(ids)
    for i = 1, #ids do
      if found[i] then
        local over = ended_wait(found[i])
        redis.call('HSET', bodies, fields[i], over)
      end
    end
  end
  if died.dead_to then
    copy_dead(died, now)
  end
  note_outcomes(ids, now, 'd')
  if retention > 0 then
    drop_old_dead(audited, now - retention, now, math.max(OLD_LEAST, 2 * #ids))
  end
end
