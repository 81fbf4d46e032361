--[[
query_fail: fail single messages of a query's batch: give them back for a retry, or send them to the
DeadQueue.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   reason               f failed: each message uses up a retry; r rejected: dead at once
ARGV[5..] n numbers of the log, ascending, within 4000; n members (13 bytes each); n times a
          wait_ms until the retry, '' for the topic's policy; n errors (at most 64 KiB each)
Returns   A letter for each message: r goes back for a retry, d dead. R or D: the same, by an
          earlier call. 0: it is not in flight for the query.
Cost      O(L / 500 + s + n log M), L = ids in the log, s = numbers from the first to the last, M =
          members of the slot. n is at most 1000. A slot in order also reads the n records.
Atomic    A message moves in the step that marks its number, so no second call moves it, whoever
          calls. Its id stays in the log, so the batch is replayed with it. query_settle drops both.
          Only a message that was handed out under this number moves, and only if it is in flight
          for the query. The owner is not checked, because any task of the query may fail a message.
          The first write frees memory. A second run finds the marks and changes nothing.
]]
--- @keys slot store prepare records dead failures audit bodies query querylog querymarks pending targets results keeping
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/settle/check_dead_keys"
--- @include "lib/slot_fields"
--- @include "lib/query"
--- @include "lib/writes"
local now, now_us = clock(ARGV[1])
local reason, n = ARGV[4], (#ARGV - 4) / 4
if reason ~= 'f' and reason ~= 'r' then
  fail('ARG', 'reason')
end
if n < 1 or n > MOST or n % 1 > 0 then
  fail('ARG', 'messages')
end
local numbers, all_waits = {}, {}
for i = 1, n do
  numbers[i] = whole_number(ARGV[4 + i], i > 1 and numbers[i - 1] + 1 or 1, NUMBER_MOST, 'number')
  local wait = ARGV[4 + 2 * n + i]
  all_waits[i] = wait ~= '' and whole_number(wait, 0, WAIT_MOST_MS, 'wait_ms')
end
if numbers[n] - numbers[1] >= QUERY_MOST then
  fail('ARG', 'number')
end
local members = { unpack(ARGV, 5 + n, 4 + 2 * n) }
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
local state = read_query()
local before_log, tail, expired_to = log_range(state, 0)
local low, high = math.max(numbers[1], before_log + 1), math.min(numbers[n], tail)
local handed_out = tonumber(state[READ] or 0)
local log_ids = {}
if low <= high then
  log_ids = redis.call('LRANGE', querylog, low - before_log - 1, high - before_log - 1)
end
local marked = read_marks(numbers[1], numbers[n])
local scores = redis.call('ZMSCORE', prepare, unpack(members))
redis.call('ZCARD', store)
check_dead_keys(fields[AUDITED], fields[DEAD_TO])

-- Return the letter of message i if it cannot be failed, else nil.
local function letter_of(i)
  local number, score = numbers[i], scores[i]
  if log_ids[number - low + 1] ~= members[i] then
    return '0'
  end
  if marked[number] then
    return string.upper(string.match(marked[number], '%a'))
  end
  local in_flight = number > expired_to and score and tonumber(score) >= QUERY_DEADLINE * 1000
  if not in_flight or number > handed_out then
    return '0'
  end
end

local letters, positions, ids, receipts, details, waits = {}, {}, {}, {}, {}, {}
for i = 1, n do
  letters[i] = letter_of(i)
  if not letters[i] then
    local m = #ids + 1
    positions[m], ids[m], receipts[m], waits[m] = i, members[i], scores[i], all_waits[i]
    details[m] = ARGV[4 + 3 * n + i]
    letters[i] = '' -- it follows below
  end
end
if #ids == 0 then
  return table.concat(letters)
end
--- @include "lib/groups/group_stops"
--- @include "lib/groups/leave_groups"
--- @include "lib/settle/fail_deliveries"

-- Give the messages back for a retry, or let them die. Return the letter of each.
local function give_back()
  local failed = { ids = ids, receipts = receipts, details = details, reason = 'f', waits = waits }
  local outcomes = fail_deliveries(failed, fields, now, now_us)
  signal_given_back(fields, false, ARGV[2], ARGV[3], now)
  return outcomes
end

-- Send the messages to the DeadQueue. Return the letter of each.
local function reject()
  local outcomes, delivery_counts = {}, {}
  for m = 1, #ids do
    local retries_left = math.floor(tonumber(receipts[m]) % 1000)
    delivery_counts[m] = math.max(1, tonumber(fields[MAX_RETRIES]) - retries_left + 1)
    outcomes[m] = 'd'
    details[m] = string.sub(details[m], 1, DETAILS_BYTES)
  end
  local let_next_out = leaving_groups(ids, { died = true })
  redis.call('ZREM', prepare, unpack(ids))
  local died = { ids = ids, delivery_counts = delivery_counts, details = details, reason = 'r' }
  died.dead_to = fields[DEAD_TO]
  add_dead(died, fields[AUDITED], tonumber(fields[RETENTION]), now)
  local any_out = let_next_out and let_next_out()
  if unblock(fields[BLOCKED], now) or any_out and is_awaited(fields[WAITING], now) then
    wake(ARGV[2], ARGV[3])
  end
  return outcomes
end

local outcomes
if reason == 'f' then
  outcomes = give_back()
else
  outcomes = reject()
end
widen(failures) -- query_settle reads it for every message of the batch
add_marks(numbers, positions, outcomes, receipts)
for m = 1, #ids do
  letters[positions[m]] = outcomes[m]
end
return table.concat(letters)
