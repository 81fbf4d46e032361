--[[
reject: send deliveries to the DeadQueue at once, even if retries are left, and store the messages
that follow from that (follow-ups) in the same step, as pending entries (lib/follow_ups/pending).
`store` is used in a slot with groups, to let the next messages out.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   reason               r rejected by the handler, u undecodable, n no handler for its type
ARGV[6]   count                n, the number of deliveries, 1 to 1000
ARGV[7..] n members (13 bytes each), their n receipts, and for each member the consumer's error (at
          most 64 KiB). Then the follow-ups (lib/follow_ups/given_follow_ups), at most 1000
Returns   a letter for each: d dead, c its cancellation was requested, so it is deleted; 0 the
          receipt is no longer valid. Behind the letters the parts that ack_then returns about
          pending entries, if there are any
Cost      O(n log L), L = members of the slot; n is at most 1000
Atomic    Like nack. Follow-ups of a delivery are stored if it becomes a dead letter, else dropped.
          A follow-up for this slot becomes a pending entry as well. In a slot in order, the last
          reject of a batch wakes the consumers that wait for the end of the batch.
]]
--- @keys slot prepare records dead failures audit bodies store settled0 settled1 pending targets results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/settle/check_dead_keys"
--- @include "lib/wake/wake"
--- @include "lib/take/in_order"
--- @include "lib/groups/given_back_functions"
--- @include "lib/leases/verify_receipts"
local IDS_FROM = 7 -- first argument of the deliveries
local now, now_us = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
if ARGV[5] ~= 'r' and ARGV[5] ~= 'u' and ARGV[5] ~= 'n' then
  fail('ARG', 'reason')
end
local created, max_retries, dead_retention_ms, blocked, audited, grouped, cancelling, dead_to =
  unpack(redis.call('HMGET', slot, 'created', 'max_retries', 'dead_retention_ms', 'blocked',
    'audited', 'groups', 'cancelling', 'dead_to'))
if not created then
  fail('GONE', slot)
end
local n = whole_number(ARGV[6], 1, MOST, 'count')
local valid_ids, letters, positions, scores = verify_receipts(IDS_FROM, n)
local from, add_follow_ups = IDS_FROM + 3 * n, nil -- first argument of the follow-ups
if #ARGV >= from then
  --- @include "lib/follow_ups/given_follow_ups"
  local given = given_follow_ups(from, n)
  add_follow_ups = function(answer)
    local of_dead = of_deliveries(given, answer, 'd')
    local last_number = redis.call('HGET', slot, 'follow_ups')
    return #of_dead > 0 and ' ' .. add_pending(of_dead, last_number, now, now_us, ':', CLAIM_MS)
      or ''
  end
elseif #ARGV ~= from - 1 then
  fail('ARG', 'errors')
end
-- A key of a wrong type stops the script here, before it writes anything.
check_dead_keys(audited, dead_to or add_follow_ups)
if #valid_ids == 0 then
  return letters
end
local receipts = {}
for m = 1, #valid_ids do
  receipts[m] = scores[positions[m]]
end
local any_cancelled = false
if cancelling then
  --- @include "lib/settle/remove_cancelled_from"
  -- This shortens valid_ids, receipts and positions.
  local valid = { ids = valid_ids, receipts = receipts, other_lists = { positions } }
  local cancelled = remove_cancelled_from(valid, now)
  any_cancelled = #cancelled > 0
  letters = with_cancelled(letters, IDS_FROM, cancelled)
end
local let_next_out
if grouped then
  local leave = given_back_functions()
  let_next_out = leave(valid_ids, { died = true })
end
local delivery_counts, details = {}, {}
for m = 1, #valid_ids do
  local retries_left = math.floor(tonumber(receipts[m]) % 1000)
  delivery_counts[m] = math.max(1, tonumber(max_retries) - retries_left + 1)
  details[m] = string.sub(ARGV[IDS_FROM + 2 * n + positions[m] - 1], 1, DETAILS_BYTES)
end
if #valid_ids > 0 then
  redis.call('ZREM', prepare, unpack(valid_ids))
  local died = {
    ids = valid_ids, delivery_counts = delivery_counts, details = details, reason = ARGV[5],
    dead_to = dead_to,
  }
  add_dead(died, audited, tonumber(dead_retention_ms), now)
end
local any_out = let_next_out and let_next_out() or any_cancelled
if unblock(blocked, now) then
  wake(ARGV[3], ARGV[4])
elseif any_out then
  wake_sleepers(now, ARGV[3], ARGV[4])
end
local answer = string.gsub(letters, '1', 'd')
if add_follow_ups then
  answer = answer .. add_follow_ups(answer)
end
remember(ARGV[2], now, answer)
return answer
