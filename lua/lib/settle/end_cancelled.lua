-- End the deliveries whose cancellation was requested, for scripts that give deliveries back.
--- @needs slot prepare
--- @include "lib/check"
--- @include "lib/groups/given_back_functions"
--- @include "lib/settle/cancel_requests"
--- @include "lib/settle/drop_cancelled"

-- Delete cancelled messages that are in flight, with everything that belongs to them. The first
-- write frees memory.
local function delete_cancelled(ids, now)
  local cancelling, dedup_ms, last_turn, audited, chunk, grouped = unpack(redis.call('HMGET', slot,
    'cancelling', 'dedup_ms', 'settled_turn', 'audited', 'chunk', 'groups'))
  check_cancelled(audited)
  local let_next_out
  if grouped then
    local leave = given_back_functions()
    let_next_out = leave(ids)
  end
  redis.call('ZREM', prepare, unpack(ids))
  drop_cancelled(ids, audited, chunk, dedup_ms, last_turn, now)
  forget_requests(ids, cancelling)
  if let_next_out then
    let_next_out()
  end
end

-- Return the letters of a call with a c for each cancelled delivery. `before`: place in ARGV before
-- the ids of the call.
--- @inline
local function with_cancelled(letters, before, cancelled)
  local set, changed = {}, {}
  for m = 1, #cancelled do
    set[cancelled[m]] = true
  end
  for i = 1, #letters do
    local letter = string.sub(letters, i, i)
    changed[i] = letter == '1' and set[ARGV[before + i]] and 'c' or letter
  end
  return table.concat(changed)
end

-- End the valid deliveries of a call whose cancellation was requested.
--   letters: 1 or 0 for each delivery of the call; '' if the call needs no letters
--   before: place in ARGV before the ids of the call
--   valid: `ids` and `receipts` of the valid deliveries, and the list `more` of other lists with an
--     item for each. Cancelled deliveries are removed from all these lists
-- Returns the letters, with a c for each cancelled delivery.
local function end_cancelled(letters, before, valid, now)
  local ids, lists, cancelled = valid.ids, { valid.ids, valid.receipts, unpack(valid.more) }, {}
  local requests, count, kept = find_requests(ids, valid.receipts), #ids, 0
  for i = 1, count do
    if requests[i] then
      cancelled[#cancelled + 1] = ids[i]
    else
      kept = kept + 1
      for l = 1, #lists do
        lists[l][kept] = lists[l][i]
      end
    end
  end
  if kept == count then
    return letters
  end
  for l = 1, #lists do
    for i = kept + 1, count do
      lists[l][i] = nil
    end
  end
  delete_cancelled(cancelled, now)
  local changed = with_cancelled(letters, before, cancelled)
  return changed
end
