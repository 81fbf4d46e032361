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
Returns   {number of messages settled, number of the batch's ids left in the log, number of the
          batch's messages that could not be settled, bytes read since the last call, ms that the
          other owner has left, the other owner}. The last two only if another owner runs the query:
          then nothing changed.
Cost      O(k), k = limit, for whole pages of which no message left the query, while one query has
          messages of the slot. Otherwise at most 1000 ids leave the log, in O(log L) each, L =
          leases of the slot. In an audited slot also the records of the messages.
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
  kept_state = unpack(redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'blocked',
    'audited', 'chunk', 'large', 'offloaded', 'history', 'acked'))
if not created then
  fail('GONE', slot)
end
local state = read_query()
local left, other = other_owner(state, ARGV[3], now)
local first, tail, expired_to = log_range(state, 0)
local last = math.min(upto, tail) -- number of the batch's last id in the log
local size = math.min(history and MOST or limit, limit, last - first) -- ids that leave the log now
if other then
  return { 0, 0, 0, 0, left, other }
end
local done, exact = tonumber(state[SETTLED] or 0), state[EXACT] == '1'
local gone_before = math.max(since, done, exact and tonumber(state[WAIVED] or 0) or 0)
local missed = state[MISSED_AT] == ARGV[7] and tonumber(state[MISSED]) or 0
-- Messages of the batch that have left the log and were not settled.
local missing = math.max(0, math.min(upto, first) - gone_before)
local bytes = tonumber(state[BYTES] or 0)

-- Store up to which number the query has settled. Store how many messages of the batch are missing,
-- if a later call has to return that.
local function store_progress(ends)
  missed = missed + missing
  if ends > done then
    redis.call('HSET', query, 'settled', ends)
  end
  if exact or ends < last then
    if missing > 0 then
      redis.call('HSET', query, 'missed', missed, 'missed_at', ARGV[7])
    end
  elseif state[MISSED] then
    redis.call('HDEL', query, 'missed', 'missed_at')
  end
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
local query_count, low = redis.call('ZCARD', queries), string.format('%.0f', QUERY_DEADLINE * 1000)
local failed = redis.call('HLEN', failures)
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
if size <= 0 then
  if last > done or state[MISSED] and not exact then
    allow_oom(prepare)
    store_progress(last)
  end
  forget_bytes()
  return { 0, 0, missed, bytes }
end
-- The page also has the id behind the end, which says whether a page of query_take ends there.
local page = redis.call('LRANGE', querylog, 0, size)
local following = page[size + 1]
page[size + 1] = nil
local any_marked = redis.call('ZCOUNT', querymarks, '-inf', first + size + 1) > 0
local marked = any_marked and read_marks(first + 1, first + size + 1) or {}
local ids, waiting_ids, waiting_scores = page, {}, {} -- to be settled
if any_marked then
  ids = {}
  for i = 1, size do
    if not marked[first + i] then
      ids[#ids + 1] = page[i]
    end
  end
end

-- Return the number of the page of a message, or nil if it is not in flight for the query.
local function page_of(id)
  local score = tonumber(redis.call('ZSCORE', prepare, id) or 0)
  return score >= QUERY_DEADLINE * 1000 and math.floor(score / 1000) - QUERY_DEADLINE or nil
end

-- Return the number of messages on the pages up to this page, and the end of their range.
local function count_pages(number)
  local past = string.format('(%.0f', (QUERY_DEADLINE + number + 1) * 1000)
  return redis.call('ZCOUNT', prepare, low, past), past
end

-- Return the end of a range of receipts that has exactly the messages of `ids`; nil if they are not
-- whole pages. If `ids` ends inside a page, remove the ids of that page.
--
-- If there is one query, all messages with deadlines of queries are its own, and pages follow each
-- other in the log. The pages that end within `ids` are then part of `ids`. So they are the same if
-- they have the same number of messages. To read the score of each message would double the cost of
-- the script. Messages that were taken out of the batch do not count. If the query has received
-- one of them again, it is on a later page.
local function whole_pages()
  if query_count ~= 1 or expired_to ~= first or #ids == 0 or marked[first + size + 1] then
    return nil
  end
  if not following then
    local count, past = count_pages(tonumber(state[PAGE] or 0))
    return count == #ids and past or nil
  end
  local newest, behind = page_of(ids[#ids]), page_of(following)
  if not newest or not behind or behind < newest then
    return nil
  end
  if behind > newest then
    local count, past = count_pages(newest)
    return count == #ids and past or nil
  end
  if any_marked then
    return nil
  end
  -- The end is inside a page: settle the pages before it first.
  local count, past = count_pages(newest - 1)
  if count == 0 or count >= size or page_of(page[count + 1]) ~= newest then
    return nil
  end
  size, ids = count, { unpack(page, 1, count) }
  return past
end

local high = whole_pages()
if not high then
  --- @include "lib/settle/attempts"
  redis.call('ZCARD', store)
  if size > MOST then
    size, page = MOST, { unpack(page, 1, MOST) }
  end
  local scores, entries, waiting, seen = redis.call('ZMSCORE', prepare, unpack(page)), {}, {}, {}
  if expired_to > first then
    entries = redis.call('HMGET', failures, unpack(page))
    waiting = redis.call('ZMSCORE', store, unpack(page))
  end

  -- Return whether a message still waits since its lease has expired.
  local function still_waits(i)
    local _, flags, details = read_entry(entries[i] or '')
    local has_expired = scores[i] and tonumber(scores[i]) < 2000
    return flags < 8 and details == ARGV[9] and (has_expired or waiting[i])
  end

  -- Settle a message that waits. Its lease may have expired twice, so its id may come twice.
  local function settle_waiting(i)
    local id = page[i]
    if seen[id] then
      return
    end
    seen[id] = true
    ids[#ids + 1] = id
    if waiting[i] then
      waiting_ids[#waiting_ids + 1], waiting_scores[id] = id, waiting[i]
    end
  end

  -- Settle the message at position i of the page, or count it as missing, or only drop its id.
  local function settle_one(i)
    local number = first + i
    if marked[number] then
      return -- query_fail took it out of the batch
    end
    if number > expired_to and scores[i] and tonumber(scores[i]) >= QUERY_DEADLINE * 1000 then
      ids[#ids + 1] = page[i]
      return
    end
    if number <= since then
      return -- the id is from an earlier batch
    end
    if number <= expired_to and still_waits(i) then
      settle_waiting(i)
    else
      missing = missing + 1
    end
  end

  ids = {}
  for i = 1, #page do
    settle_one(i)
  end
end
local settled = 0
if #ids > 0 then
  --- @include "lib/groups/leave_groups"
  --- @include "lib/wake/wake"
  local kept = window > 0 and kept_ids(ids)
  if kept then
    check_settled_sets(window, last_turn, now)
  end
  if history then
    --- @include "lib/history/keep_acked"
    redis.call('ZCARD', audit)
    keep_acked(ids, history, kept_state, large, tonumber(chunk), now)
  end
  if audited then
    --- @include "lib/audit"
    account_for('seen', read_numbers(ids, tonumber(chunk)), now)
  end
  local scores = {}
  for i = 1, #ids do
    scores[i] = waiting_scores[ids[i]] or false
  end
  local let_next_out = leaving_groups(ids, nil, nil, scores)
  allow_oom(prepare)
  note_outcomes(ids, now, 's')
  local removed = remove_deliveries(large or offloaded, ids, failed, low, high, history)
  if kept then
    remember_settled(window, last_turn, now, kept)
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
    wake_sleepers(now, ARGV[4], ARGV[5])
  end
  settled = removed + #waiting_ids
  redis.call('HINCRBY', slot, 'settled', settled)
end
redis.call('LTRIM', querylog, size, -1)
if any_marked then
  drop_marks(first + size)
end
store_progress(first + size)
if first + size == tail then
  redis.call('ZREM', queries, ARGV[2])
  redis.call('PEXPIRE', query, QUERY_KEPT_MS)
end
forget_bytes()
return { settled, last - first - size, missed, bytes }
