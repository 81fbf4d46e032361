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
          keeps results, the error RESULTS tells the caller to call ack_then. In a slot with a
          history, the messages are added to it (lib/history/trim_history).
]]
--- @keys slot prepare records failures settled0 settled1 audit dead bodies store acked ackedparts
--- @include "lib/split_call"
local call = ARGV[2]
local session, call_number = split_call(call)
-- last_call: number, time and answer; false in a new session.
local created, dedup_ms, settled_turn, delivered, blocked, audited, chunk, settled, last_call,
  large, grouped, offloaded, cancelling, outcomes, history, history_state =
  unpack(redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'delivered', 'blocked',
    'audited', 'chunk', 'settled', session, 'large', 'groups', 'offloaded', 'cancelling',
    'outcomes', 'history', 'acked'))
--- @include "alone/ack"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/leases/receipt_runs"
--- @include "lib/records/envelope"
--- @include "lib/replay"
--- @include "lib/settle/count_failed"
--- @include "lib/settle/remove_deliveries"
--- @include "lib/send/dedup_window"

local ALL_SETTLED = '1' -- the stored answer if all deliveries are settled, however many they are
local now = clock(ARGV[1])
session, call_number = session_of(call)
local runs = whole_number(ARGV[5], 1, MOST, 'runs')
local count = count_deliveries(runs)
local earlier_answer = answer_in(last_call, call_number)
if earlier_answer then
  return earlier_answer == ALL_SETTLED and string.rep('1', count) or earlier_answer
end
if not created then
  fail('GONE', slot)
end
if outcomes then
  fail('RESULTS', slot) -- the caller has to call ack_then, which stores results
end
local ids_from = RUNS_FROM + 3 * runs
local numbers_from = ids_from + count
local are_numbers_given = #ARGV == numbers_from + count - 1
if count > MOST or #ARGV ~= numbers_from - 1 and not are_numbers_given then
  fail('ARG', 'count')
end
if are_numbers_given and not string.find(table.concat(ARGV, ' ', numbers_from), '^[%x. ]*$') then
  fail('ARG', 'number')
end
local uses_numbers = are_numbers_given and audited

local valid_ids, letters, positions, low, high
valid_ids, letters, positions, low, high = verify_runs(runs, count, ids_from,
  tonumber(delivered or 0))
local audit_numbers = nil -- of the valid ids
if uses_numbers and positions then
  audit_numbers = {}
  for m = 1, #positions do
    audit_numbers[m] = ARGV[numbers_from + positions[m] - 1]
  end
elseif uses_numbers then
  audit_numbers = { unpack(ARGV, numbers_from) }
end
local failed = count_failed()
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
local resendable = window > 0 and resendable_ids(valid_ids)
if resendable then
  check_settled_sets(window, last_turn, now)
end
if history and #valid_ids > 0 then
  --- @include "lib/history/keep_acked"
  redis.call('ZCARD', audit) -- a key of a wrong type is noticed before the first write
  keep_acked(valid_ids, history, history_state, large, tonumber(chunk), now)
end
if audited and #valid_ids > 0 then
  --- @include "lib/audit"
  audit_numbers = uses_numbers and add_numbers(audit_numbers, parse_number, {})
    or read_numbers(valid_ids, tonumber(chunk))
  account_for('seen', audit_numbers, now)
end
if #valid_ids == 0 then
  return letters
end

local let_next_out
if grouped then
  --- @include "lib/groups/leave_groups"
  --- @include "lib/groups/leave_plain_groups"
  let_next_out = leaving_groups(valid_ids, { leave_plainly = leave_plain_groups })
end
local removed = remove_deliveries(large or offloaded, valid_ids, failed, low, high, history)
if cancelling then
  --- @include "lib/settle/cancel_requests"
  forget_requests(valid_ids, cancelling)
end
if resendable then
  remember_settled(window, last_turn, now, resendable)
end
local any_out = let_next_out and let_next_out()
local is_unblocked = false
if blocked then
  --- @include "lib/take/in_order"
  is_unblocked = unblock(blocked, now)
end
if is_unblocked then
  --- @include "lib/wake/wake"
  wake(ARGV[3], ARGV[4])
elseif any_out then
  --- @include "lib/wake/wake"
  wake_sleepers(now, ARGV[3], ARGV[4])
end
local answer = session_value(call_number, now, #valid_ids == count and ALL_SETTLED or letters)
redis.call('HSET', slot, 'settled', tonumber(settled or 0) + removed, session, answer)
if not last_call then
  sweep_sessions(now, SWEPT)
end
return letters
