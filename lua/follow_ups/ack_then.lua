--[[
ack_then: settle deliveries for good, and store the messages that follow from them (follow-ups) in
the same step, and how these messages have ended (lib/results/results). A follow-up for this slot is
stored at once. A follow-up for another slot becomes a pending entry (lib/follow_ups/pending), which
pending_send stores there. `dead` is only counted. `merge` is for messages that drop_lowest drops.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5..] runs, and the n members of 1 to 1000 deliveries, as for ack. Then the number of results:
          0, 1 for all deliveries, or n. Then for how long all these messages keep their results,
          ms; '' if the times differ: then the marks of the records are read. Then the results: ''
          the message keeps none (or s, if the records are read), s succeeded, h handed over before
          it is handled; and behind this letter, the details (lib/results/results), at most
          300 000 bytes. Then nothing, or the name of this slot, `<topic>:<index>`, and the
          follow-ups (lib/follow_ups/given_follow_ups)
Returns   `<letters> <number> <claim> <targets>`. A letter for each delivery: 1 settled, 0 the
          receipt is no longer valid. The number of the first pending entry, or 0 if there are none;
          the next entries have the next numbers, in the order of the arguments. The claim of the
          caller (pending_settle). For each target that got entries, `<target>=` and a letter. With
          n, the caller sends the entries, which are the only entries of this target. With o, some
          entries are older, and the caller reads and sends all. With w, another process sends them.
Cost      O((n + f) log L), f = follow-ups, L = leases, messages or pending entries of the slot.
Atomic    Result and follow-ups of a delivery are stored if its receipt is valid, else dropped. A
          result is stored only for a message with the mark (lib/results/keep_mark). If sends to
          this slot are paused, or it is full, or it has older pending entries for itself, its
          follow-ups become pending entries as well. Works while Redis is at maxmemory. A call that
          is sent twice gets the first answer again. In other respects like ack.
]]
--- @keys slot store prepare records dead failures merge audit bodies settled0 settled1 pending targets results keeping acked ackedparts
--- @include "lib/split_call"
local RESULT_MOST = 300000 -- bytes of a result
local call = ARGV[2]
local session, call_number = split_call(call)
-- last_call: number, time and answer; false in a new session.
local created, blocked, audited, settled, large, offloaded, last_number, cancelling, grouped,
  outcomes, delivered, history, last_call =
  unpack(redis.call('HMGET', slot, 'created', 'blocked', 'audited', 'settled', 'large', 'offloaded',
    'follow_ups', 'cancelling', 'groups', 'outcomes', 'delivered', 'history', session))
--- @include "alone/ack_then"
--- @include "lib/audit"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/follow_ups/given_follow_ups"
--- @include "lib/groups/groups"
--- @include "lib/groups/leave_groups"
--- @include "lib/member"
--- @include "lib/records/envelope"
--- @include "lib/records/drop_records"
--- @include "lib/records/record_bytes"
--- @include "lib/replay"
--- @include "lib/results/keep_mark"
--- @include "lib/results/note_outcomes"
--- @include "lib/send/store_messages"
--- @include "lib/settle/count_failed"
--- @include "lib/send/dedup_window"
--- @include "lib/settle/remove_deliveries"
--- @include "lib/slot_fields"
--- @include "lib/wake/wake"
--- @include "lib/writes"
local now, now_us = clock(ARGV[1])
local earlier_answer = replayed(call)
if earlier_answer then
  return earlier_answer
end
if not created then
  fail('GONE', slot)
end
local fields = read_store_fields('')
-- results_given: results of the valid deliveries; here: index of the target of this slot in `away`.
local keep, valid_ids, letters, low, high, results_given, place, away, here
do
  --- @include "lib/leases/receipt_runs"
  local runs = whole_number(ARGV[5], 1, MOST, 'runs')
  local n = count_deliveries(runs)
  local ids_from = RUNS_FROM + 3 * runs
  -- Before the results are their number, and for how long they are kept.
  local results_from, positions = ids_from + n + 2, nil
  local result_count = whole_number(ARGV[results_from - 2] or '', 0, MOST, 'results')
  if result_count > 0 and ARGV[results_from - 1] ~= '' then
    keep = whole_number(ARGV[results_from - 1] or '', 1, NUMBER_MOST, 'keep')
  end
  if n > MOST or result_count > 1 and result_count ~= n then
    fail('ARG', 'count')
  end
  local last = tonumber(delivered or 0)
  valid_ids, letters, positions, low, high = verify_runs(runs, n, ids_from, last)
  local from = results_from + result_count + 1 -- first argument of the follow-ups
  if outcomes then
    -- Return the results of the valid deliveries: one for all, or by position.
    local function given_results(at, count, ids, positions)
      local given = {}
      for i = 1, count do
        local text = ARGV[at + i - 1]
        local letter = text == '' and 's' or string.sub(text, 1, 1)
        if letter ~= 's' and letter ~= 'h' or #text > RESULT_MOST then
          fail('ARG', 'result')
        end
        given[i] = text == '' and not keep and 's' or text
      end
      if count < 2 then
        return given[1] or 's'
      end
      local of_valid = {}
      for m = 1, #ids do
        of_valid[m] = given[positions and positions[m] or m]
      end
      return of_valid
    end

    results_given = given_results(results_from, result_count, valid_ids, positions)
  end
  place = ARGV[from - 1]
  if place then
    check_place(place)
  elseif #ARGV ~= from - 2 then
    fail('ARG', 'results')
  end
  away = of_deliveries(given_follow_ups(from, n), letters, '1')
end
for i = 1, #away do
  here = here or away[i].target == place and i
end
local failed = count_failed()
local window, last_turn = tonumber(fields[DEDUP_MS]), tonumber(fields[SETTLED_TURN])
local resendable = window > 0 and resendable_ids(valid_ids)
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
redis.call('ZCARD', store)
redis.call('HLEN', records)
redis.call('ZCARD', dead)
redis.call('HLEN', merge)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
redis.call('ZCARD', pending)
redis.call('ZCARD', targets)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
if #valid_ids == 0 then
  return letters .. ' 0 0'
end

if history then
  local function add_to_history() -- each function may have 200 local variables
    --- @include "lib/history/keep_acked"
    local state, chunk = unpack(redis.call('HMGET', slot, 'acked', 'chunk'))
    keep_acked(valid_ids, history, state, large, tonumber(chunk), now)
  end
  add_to_history()
end
allow_oom(prepare)
local serves_sleepers = false
if here and not fields[PAUSED_SEND] and not redis.call('ZSCORE', targets, place) then
  -- Store follow-ups for this slot. Return whether they are stored, and whether sleeping consumers
  -- must be served.
  local function store_here(messages)
    local given, count = {}, #messages
    for i = 1, count do
      local message = messages[i]
      given[i] = string.sub(message, 1, MEMBER)
      given[count + 2 * i - 1] = string.sub(message, MEMBER + 1, MEMBER + HEAD)
      given[count + 2 * i] = string.sub(message, MEMBER + HEAD + 1)
    end
    local batch = { given = given, at = 0, count = count, large = false }
    local reply, serves_sleepers = store_messages(batch, fields, now)
    return reply[2] ~= FULL, serves_sleepers
  end

  local is_stored
  is_stored, serves_sleepers = store_here(away[here].messages)
  if is_stored then
    table.remove(away, here)
  end
end
local let_next_out
if fields[GROUPS] then
  local function leave()
    --- @include "lib/groups/leave_plain_groups"
    return leaving_groups(valid_ids, { leave_plainly = leave_plain_groups })
  end
  let_next_out = leave()
end
if audited then
  local chunk = tonumber(redis.call('HGET', slot, 'chunk'))
  account_for('seen', read_numbers(valid_ids, chunk), now)
end
if outcomes then
  local ended = { given = results_given, keep = keep }
  note_outcomes(valid_ids, now, nil, ended)
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
local is_unblocked
do
  --- @include "lib/take/in_order"
  is_unblocked = unblock(blocked, now)
end
local added = #away > 0 and add_pending(away, last_number, now, now_us, ':', CLAIM_MS)
local answer = letters .. ' ' .. (added or '0 0')
redis.call('HSET', slot, 'settled', tonumber(settled or 0) + removed)
remember(call, now, answer)
-- Wake sleeping consumers, or hand messages over to them.
if is_unblocked then
  wake(ARGV[3], ARGV[4])
elseif serves_sleepers then
  local function serve()
    --- @include "lib/wake/hand_over"
    serve_sleepers(ARGV[3], ARGV[4], now)
  end
  serve()
elseif any_out then
  wake_sleepers(now, ARGV[3], ARGV[4])
end
return answer
