--[[
query_settle: settle messages of a query, from the beginning of its log.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                1 to 200 bytes: the process that runs the query
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
ARGV[6]   since                the batch begins after this number
ARGV[7]   upto                 last number of the batch
ARGV[8]   limit                1 to 4000
ARGV[9]   details              text of the failure entries of messages that this query gave back
          (query_rollback).
Returns   {number of messages settled,
           number of the batch's ids left in the log,
           number of the batch's messages that could not be settled,
           bytes read since the last call}.
          If another owner runs the query, nothing changes, and two values follow:
           ms until its ownership ends,
           the other owner.
Cost      O(k), k = limit, for whole pages of which no message left the query, while one query has
          messages of the slot. Otherwise at most 1000 ids leave the log, in O(log L) each, L =
          leases of the slot. In an audited slot also the records of the messages. In a slot with a
          history, at most 1000 ids leave the log, because the script copies their records.
Atomic    A message leaves the log in the step that settles it. It only leaves the log if it has
          left the PrepareQueue, or is in flight for another consumer. A message that query_fail
          took out of the batch also only leaves the log, and its mark is dropped. It is not
          missing.
          A message of the batch whose lease has expired is settled if it still waits. Its failure
          entry says that this query gave it back, so no other consumer has received it since. Other
          messages of the batch count as missing. Each later call for this batch returns their
          number again, until an owner calls that is not exact.
          `settled` also passes numbers whose messages are all gone: a batch that ends there is
          done. The lease ends with the last message of the query. `leases_until` of the slot stays:
          it may be too early until a rollback corrects it. The first write needs no memory. A
          second run continues. Bytes are returned once.
]]
--- @keys slot prepare records failures settled0 settled1 audit query querylog queries store bodies querymarks results keeping acked ackedparts
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/query"
--- @include "lib/results/note_outcomes"
--- @include "lib/settle/remove_deliveries"
--- @include "lib/send/dedup_window"
local now = clock(ARGV[1])
check_names(ARGV[2], ARGV[3])
local since = whole_number(ARGV[6], 0, NUMBER_MOST, 'since')
local upto = whole_number(ARGV[7], 0, NUMBER_MOST, 'upto')
local limit = whole_number(ARGV[8], 1, QUERY_MOST, 'limit')
local created, dedup_ms, settled_turn, blocked, audited, chunk, large, offloaded, history,
  history_state = unpack(redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'blocked',
    'audited', 'chunk', 'large', 'offloaded', 'history', 'acked'))
if not created then
  fail('GONE', slot)
end
local state = read_query()
local other_ms, other = other_owner(state, ARGV[3], now)
local before_log, tail, expired_to = log_range(state, 0)
if other then
  return { 0, 0, 0, 0, other_ms, other }
end
local batch_end = math.min(upto, tail) -- number of the batch's last id in the log
local settled_to, exact = tonumber(state[SETTLED] or 0), state[EXACT] == '1'
local bytes = tonumber(state[BYTES] or 0)
-- Numbers of missing messages of the batch: as earlier calls stored it, and of messages that have
-- left the log since then without being settled.
local missing_stored = state[MISSED_AT] == ARGV[7] and tonumber(state[MISSED]) or 0
local done_to = math.max(since, settled_to, exact and tonumber(state[WAIVED] or 0) or 0)
local missing_earlier = math.max(0, math.min(upto, before_log) - done_to)

-- Store up to which number ids have left the log, and how many messages of the batch are missing if
-- a later call has to return that. Return that number. `missing_now`: not yet stored.
local function store_progress(to, missing_now)
  local missing = missing_stored + missing_now
  if to > settled_to then
    redis.call('HSET', query, 'settled', to)
  end
  if exact or to < batch_end then
    if missing_now > 0 then
      redis.call('HSET', query, 'missed', missing, 'missed_at', ARGV[7])
    end
  elseif state[MISSED] then
    redis.call('HDEL', query, 'missed', 'missed_at')
  end
  return missing
end

-- Forget the bytes that were read, since they are returned.
local function forget_bytes()
  if bytes > 0 then
    redis.call('HDEL', query, 'bytes')
  end
end

-- A key of a wrong type stops the script here.
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
local query_count = redis.call('ZCARD', queries)
local failed = redis.call('HLEN', failures)
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
-- Number of ids that may leave the log now. With a history, their records are read.
local most = math.min(history and MOST or limit, limit, batch_end - before_log)
if most <= 0 then
  local missing = missing_stored
  if batch_end > settled_to or state[MISSED] and not exact then
    allow_oom(prepare)
    missing = store_progress(batch_end, missing_earlier)
  end
  forget_bytes()
  return { 0, 0, missing, bytes }
end

-- Phase 1: read the first ids of the log, and the id behind them. That id says whether a page of
-- query_take ends before it.
local log_ids = redis.call('LRANGE', querylog, 0, most)
local following = log_ids[most + 1]
log_ids[most + 1] = nil
local log_end = before_log + most
local any_marked = redis.call('ZCOUNT', querymarks, '-inf', log_end + 1) > 0
local marked = any_marked and read_marks(before_log + 1, log_end + 1) or {}

-- Phase 2: choose the ids that leave the log, and the messages to settle. Both functions below
-- return a table:
--   size: number of ids that leave the log.
--   ids: messages to settle.
--   range_end: end of a range of receipts that has exactly these messages, or nil.
--   waiting_ids: messages to settle that are in the StoreQueue. store_scores: their scores, by id.
--   missing: number of messages of the batch that cannot be settled.
local first_receipt = string.format('%.0f', QUERY_DEADLINE * 1000) -- of a query

-- Return the number of the page of a message, or nil if it is not in flight for the query.
local function page_of(id)
  local score = tonumber(redis.call('ZSCORE', prepare, id) or 0)
  return score >= QUERY_DEADLINE * 1000 and math.floor(score / 1000) - QUERY_DEADLINE or nil
end

-- Return the number of messages on the pages up to this page, and the end of their range.
local function count_pages(number)
  local range_end = string.format('(%.0f', (QUERY_DEADLINE + number + 1) * 1000)
  return redis.call('ZCOUNT', prepare, first_receipt, range_end), range_end
end

-- Return the ids of the log, without the messages that query_fail took out of the batch.
local function unmarked_ids()
  local ids = {}
  for i = 1, most do
    if not marked[before_log + i] then
      ids[#ids + 1] = log_ids[i]
    end
  end
  return ids
end

-- Choose whole pages of query_take. Return nil if that is not possible. To read each receipt would
-- double the cost of the script.
--
-- If there is one query, every message with a deadline of a query is its own. Pages follow each
-- other in the log. So the ids are exactly these pages if ZCOUNT of the pages equals #ids. For
-- example, the log has the messages a to f, on the pages 1: a b, 2: c d e, 3: f.
--
--   most = 5: The ids are a to e. Pages 1 and 2 have 5 messages, and are settled.
--   most = 4: The ids are a to d. The following id e is also on page 2, so only page 1 is settled.
--   most = 5, c is marked: The ids are a b d e. Pages 1 and 2 have 4 messages, and are settled.
--
-- A marked message that the query has received again is on a later page.
local function choose_whole_pages()
  local ids = any_marked and unmarked_ids() or log_ids
  if query_count ~= 1 or expired_to ~= before_log or #ids == 0 or marked[log_end + 1] then
    return nil
  end
  local last_page, next_page = tonumber(state[PAGE] or 0), math.huge -- if the log ends here
  if following then
    last_page, next_page = page_of(ids[#ids]), page_of(following)
    if not last_page or not next_page or next_page < last_page then
      return nil
    end
  end
  local size, ends_inside = most, next_page == last_page
  if ends_inside and any_marked then
    return nil
  end
  local count, range_end = count_pages(ends_inside and last_page - 1 or last_page)
  if ends_inside then
    if count == 0 or count >= most or page_of(log_ids[count + 1]) ~= last_page then
      return nil
    end
    size, ids = count, { unpack(log_ids, 1, count) }
  elseif count ~= #ids then
    return nil
  end
  return { size = size, ids = ids, range_end = range_end, waiting_ids = {}, store_scores = {},
    missing = 0 }
end

-- Choose messages by their receipts, at most MOST.
local function choose_by_receipts()
  --- @include "lib/settle/attempts"
  redis.call('ZCARD', store)
  local size = math.min(most, MOST)
  local chosen = { size = size, ids = {}, waiting_ids = {}, store_scores = {}, missing = 0 }
  local page_ids = size < most and { unpack(log_ids, 1, size) } or log_ids
  local receipts = redis.call('ZMSCORE', prepare, unpack(page_ids))
  local entries, store_scores, is_chosen = {}, {}, {}
  if expired_to > before_log then
    entries = redis.call('HMGET', failures, unpack(page_ids))
    store_scores = redis.call('ZMSCORE', store, unpack(page_ids))
  end

  -- Return whether a message of the query has not been received since its lease expired.
  local function is_untouched_since_expiry(i)
    local _, flags, details = read_entry(entries[i] or '')
    local receipt = receipts[i] and tonumber(receipts[i])
    local is_rolled_back = receipt and receipt < (ROLLED_BACK_END + 1) * 1000
    return flags < DETAILS_ARE_EARLIER and details == ARGV[9]
      and (is_rolled_back or store_scores[i])
  end

  -- Add a message to `chosen`. Its lease may have expired twice, so its id may come twice.
  local function choose_expired(i)
    local id, score = page_ids[i], store_scores[i]
    if is_chosen[id] then
      return
    end
    is_chosen[id], chosen.ids[#chosen.ids + 1] = true, id
    if score then
      chosen.waiting_ids[#chosen.waiting_ids + 1], chosen.store_scores[id] = id, score
    end
  end

  for i = 1, size do
    local number, receipt = before_log + i, receipts[i] and tonumber(receipts[i])
    local is_expired, is_marked = number <= expired_to, marked[number]
    if not is_marked and not is_expired and receipt and receipt >= QUERY_DEADLINE * 1000 then
      chosen.ids[#chosen.ids + 1] = page_ids[i]
    elseif not is_marked and number > since then -- an id up to `since` is from an earlier batch
      if is_expired and is_untouched_since_expiry(i) then
        choose_expired(i)
      else
        chosen.missing = chosen.missing + 1
      end
    end
  end
  return chosen
end

-- Phase 3: settle the chosen messages, at least one. Return how many were settled.
local function settle(chosen)
  --- @include "lib/groups/leave_groups"
  --- @include "lib/wake/wake"
  local ids, waiting_ids = chosen.ids, chosen.waiting_ids
  local resendable = window > 0 and resendable_ids(ids)
  if resendable then
    check_settled_sets(window, last_turn, now)
  end
  if history then
    --- @include "lib/history/keep_acked"
    redis.call('ZCARD', audit)
    keep_acked(ids, history, history_state, large, tonumber(chunk), now)
  end
  if audited then
    --- @include "lib/audit"
    account_for('seen', read_numbers(ids, tonumber(chunk)), now)
  end
  local scores = {}
  for i = 1, #ids do
    scores[i] = chosen.store_scores[ids[i]] or false
  end
  local let_next_out = leaving_groups(ids, { scores = scores })
  allow_oom(prepare)
  note_outcomes(ids, now, 's')
  local removed =
    remove_deliveries(large or offloaded, ids, failed, first_receipt, chosen.range_end, history)
  if resendable then
    remember_settled(window, last_turn, now, resendable)
  end
  if blocked then
    --- @include "lib/take/in_order"
    if unblock(blocked, now) then
      wake(ARGV[4], ARGV[5])
    end
  end
  if #waiting_ids > 0 then
    redis.call('ZREM', store, unpack(waiting_ids))
  end
  if let_next_out and let_next_out() then
    wake_sleepers(now, ARGV[4], ARGV[5]) -- not a second time: `wake` notes that nobody sleeps
  end
  redis.call('HINCRBY', slot, 'settled', removed + #waiting_ids)
  return removed + #waiting_ids
end

local chosen = choose_whole_pages() or choose_by_receipts()
local settled = #chosen.ids > 0 and settle(chosen) or 0

-- Phase 4: drop the ids from the log, and store the progress of the query.
local end_now = before_log + chosen.size
redis.call('LTRIM', querylog, chosen.size, -1)
if any_marked then
  drop_marks(end_now)
end
local missing = store_progress(end_now, missing_earlier + chosen.missing)
if end_now == tail then
  redis.call('ZREM', queries, ARGV[2])
  redis.call('PEXPIRE', query, QUERY_KEPT_MS)
end
forget_bytes()
return { settled, batch_end - end_now, missing, bytes }
