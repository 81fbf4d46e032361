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

-- Return the letters of a call with a c for each cancelled delivery. `from`: first argument of the
-- ids of the call.
--- @inline
local function with_cancelled(letters, from, cancelled)
  if #cancelled == 0 then
    return letters
  end
  local set, changed = {}, {}
  for m = 1, #cancelled do
    set[cancelled[m]] = true
  end
  for i = 1, #letters do
    local letter = string.sub(letters, i, i)
    changed[i] = letter == '1' and set[ARGV[from + i - 1]] and 'c' or letter
  end
  return table.concat(changed)
end

-- End the deliveries whose cancellation was requested. Remove them from the lists of `valid`, which
-- become shorter. Return their ids.
--   valid: `ids` and `receipts` of valid deliveries, and `other_lists`: nil, or lists with an item
--     for each delivery
local function remove_cancelled_from(valid, now)
  local ids, cancelled = valid.ids, {}
  local lists = { ids, valid.receipts, unpack(valid.other_lists or {}) }
  local requests, count, left = find_requests(ids, valid.receipts), #ids, 0
  for i = 1, count do
    if requests[i] then
      cancelled[#cancelled + 1] = ids[i]
    else
      left = left + 1
      for l = 1, #lists do
        lists[l][left] = lists[l][i]
      end
    end
  end
  if #cancelled == 0 then
    return cancelled
  end
  for l = 1, #lists do
    for i = left + 1, count do
      lists[l][i] = nil
    end
  end
  delete_cancelled(cancelled, now)
  return cancelled
end
