--[[
ack: settle deliveries for good. `dead` is only counted, and only if messages have failed. `store`
is used in a slot with groups, to let the next messages out.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   runs                 r; a run is deliveries whose receipts increase in steps of 1/2048
ARGV[6..] r times: number of deliveries (n in all, at most 1000), receipt of the first delivery, its
          delivery number (0: unknown). Then the n members (13 bytes each). Then nothing, or for
          each member its `<producer>.<number>`, '' if it has none
Returns   a letter for each: 1 settled, 0 the receipt is no longer valid
Cost      O(n log L), L = leases of the slot. In an audited slot the records are also read, if the
          numbers are not passed
Atomic    Only a member whose score equals the receipt is removed, so a stale ack changes nothing.
          An ack also settles a delivery whose cancellation was requested. The first write frees
          memory. A call that is sent twice gets the first answer again. In a
          slot in order, the last ack of a batch wakes the consumers that wait for the end of the
          batch. In other slots, each ack wakes the consumers that wait for room. In a slot that
          keeps results, the error RESULTS tells the caller to call ack_then.
]]
--- @keys slot prepare records failures settled0 settled1 audit dead bodies store
--- @include "lib/split_call"
local RUNS_FROM = 6 -- where the runs begin in ARGV
local call = ARGV[2]
local session, call_number = split_call(call)
-- last_call: number, time and answer; false in a new session.
local created, dedup_ms, settled_turn, delivered, blocked, audited, chunk, settled, last_call,
  large, grouped, offloaded, cancelling, outcomes = unpack(redis.call('HMGET', slot, 'created',
    'dedup_ms', 'settled_turn', 'delivered', 'blocked', 'audited', 'chunk', 'settled', session,
    'large', 'groups', 'offloaded', 'cancelling', 'outcomes'))
--- @include "alone/ack"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/leases/receipt"
--- @include "lib/records/envelope"
--- @include "lib/replay"
--- @include "lib/settle/count_failed"
--- @include "lib/settle/remove_deliveries"
--- @include "lib/send/dedup_window"
local STEP = 1 / DELIVERY_CYCLE -- between the receipts of a run
local RANGES_MOST = 4 -- runs that are checked by range; if there are more, scores are read

-- Return the position in ARGV of a run: its size, its first receipt and its delivery number.
--- @inline
local function place_of_run(r)
  return RUNS_FROM + 3 * (r - 1)
end

-- Count the deliveries of all runs.
--- @inline
local function count_deliveries(runs)
  local count = 0
  for r = 1, runs do
    local place = place_of_run(r)
    count = count + whole_number(ARGV[place], 1, MOST, 'run')
  end
  return count
end

-- Return whether all receipts of a run are valid. One look at the range of the receipts costs a
-- quarter of a look at each score. The function may return false for a valid run.
--
-- A run is valid if the range has exactly its ids in order. This is certain only while fewer than
-- 2048 deliveries have followed the first delivery of the run: after that, a later delivery of an
-- id can have the same receipt.
--
-- - at: position in ARGV of the first id of the run
-- - delivered: last delivery number of the slot
local function is_run_valid(r, at, delivered)
  local place = place_of_run(r)
  local size, receipt = tonumber(ARGV[place]), ARGV[place + 1]
  local delivery = whole_number(ARGV[place + 2], 0, NUMBER_MOST, 'delivery')
  local low = tonumber(receipt) or 0
  if size == 1 or delivery == 0 or delivered - delivery >= DELIVERY_CYCLE then
    return false
  end
  local last_fraction = low % 1 + (size - 1) * STEP
  if low % 1 ~= delivery % DELIVERY_CYCLE * STEP or last_fraction >= 1 then
    return false
  end
  local high = string.format('%.17g', low + (size - 1) * STEP)
  local in_range = redis.call('ZRANGEBYSCORE', prepare, receipt, high, 'LIMIT', 0, size + 1)
  for i = 1, size do
    if in_range[i] ~= ARGV[at + i - 1] then
      return false
    end
  end
  return #in_range == size
end

-- Return whether all receipts of all runs are valid. Like is_run_valid, this may return false for
-- valid runs. `from`: position in ARGV of the first id.
--- @inline
local function are_runs_valid(runs, count, from, delivered)
  local are_valid, at = runs <= RANGES_MOST and count > 1, from
  for r = 1, are_valid and runs or 0 do
    are_valid = are_valid and is_run_valid(r, at, delivered)
    local place = place_of_run(r)
    at = at + tonumber(ARGV[place])
  end
  return are_valid
end

-- Find the valid receipts, by the score of each. Return their ids, each once; a letter for every
-- delivery; and for each valid id its audit number, or nil. `numbers_after`: position in ARGV
-- before the numbers, or nil.
--- @inline
local function find_valid(runs, count, from, numbers_after)
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + count - 1))
  local valid_ids, letters, numbers, seen, i = {}, {}, {}, {}, 0
  for r = 1, runs do
    local place = place_of_run(r)
    local receipt = tonumber(ARGV[place + 1])
    for step = 0, tonumber(ARGV[place]) - 1 do
      i = i + 1
      local id, score = ARGV[from + i - 1], tonumber(scores[i])
      if score and receipt and score == receipt + step * STEP and not seen[id] then
        seen[id], letters[i] = true, '1'
        valid_ids[#valid_ids + 1] = id
        numbers[#valid_ids] = numbers_after and ARGV[numbers_after + i]
      else
        letters[i] = '0'
      end
    end
  end
  return valid_ids, table.concat(letters), numbers
end

local now = clock(ARGV[1])
session, call_number = session_of(call)
local earlier_answer = answer_in(last_call, call_number)
if earlier_answer then
  return earlier_answer
end
if not created then
  fail('GONE', slot)
end
if outcomes then
  fail('RESULTS', slot) -- the caller has to call ack_then, which stores results
end
local runs = whole_number(ARGV[5], 1, MOST, 'runs')
local count = count_deliveries(runs)
local from = RUNS_FROM + 3 * runs
local to = from + count - 1
local are_numbers_given = #ARGV == to + count
if count > MOST or #ARGV ~= to and not are_numbers_given then
  fail('ARG', 'count')
end
if are_numbers_given and not string.find(table.concat(ARGV, ' ', to + 1), '^[%x. ]*$') then
  fail('ARG', 'number')
end
local numbers_after = are_numbers_given and audited and to or nil

local valid_ids, letters, numbers
local low, high = nil, nil -- range of the receipts of a single valid run
local are_all_valid = are_runs_valid(runs, count, from, tonumber(delivered or 0))
if are_all_valid then
  if runs == 1 then
    low = ARGV[RUNS_FROM + 1]
    high = string.format('%.17g', tonumber(low) + (count - 1) * STEP)
  end
  valid_ids, letters = { unpack(ARGV, from, to) }, string.rep('1', count)
  numbers = numbers_after and { unpack(ARGV, to + 1, to + count) }
else
  valid_ids, letters, numbers = find_valid(runs, count, from, numbers_after)
end
local failed = count_failed()
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
local kept = window > 0 and kept_ids(valid_ids)
if kept then
  check_settled_sets(window, last_turn, now)
end
if audited and #valid_ids > 0 then
  --- @include "lib/audit"
  numbers = numbers_after and add_numbers(numbers, parse_number, {})
    or read_numbers(valid_ids, tonumber(chunk))
  account_for('seen', numbers, now)
end
if #valid_ids == 0 then
  return letters
end

local let_next_out
if grouped then
  --- @include "lib/groups/leave_groups"
  let_next_out = leaving_groups(valid_ids)
end
local removed = remove_deliveries(large or offloaded, valid_ids, failed, low, high)
if cancelling then
  --- @include "lib/settle/cancel_requests"
  forget_requests(valid_ids, cancelling)
end
if kept then
  remember_settled(window, last_turn, now, kept)
end
if let_next_out and let_next_out() then
  --- @include "lib/wake/wake"
  wake_sleepers(now, ARGV[3], ARGV[4])
end
if blocked then
  --- @include "lib/take/in_order"
  --- @include "lib/wake/wake"
  if unblock(blocked, now) then
    wake(ARGV[3], ARGV[4])
  end
end
local answer = kept_answer(call_number, now, letters)
redis.call('HSET', slot, 'settled', tonumber(settled or 0) + removed, session, answer)
if not last_call then
  sweep_sessions(now, SWEPT)
end
return letters
