--[[
nack: give deliveries back as failed. Each delivery costs its message a retry. A message without
retries goes to the DeadQueue.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   wait_ms        ''    until the retry, 0 at once, at most 10 years; '': the topic's policy
ARGV[6..] n members (13 bytes each), their n receipts, and for each member the consumer's error (at
          most 64 KiB)
Returns   a letter for each: r goes back for a retry, d dead, c its cancellation was requested, so
          it is deleted; 0 the receipt is no longer valid
Cost      O(n log L), L = members of the slot; n is at most 1000. In a slot in order, the records
          are also read.
Atomic    Only a member whose score equals the receipt moves. The first write frees memory. A call
          that is sent twice gets the first answer again and costs no second retry. In a slot in
          order, each message goes back to its old place, and no message is taken before the
          longest wait is over.
]]
--- @keys slot store prepare records dead failures audit bodies settled0 settled1 pending targets results keeping
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/slot_fields"
--- @include "lib/replay"
--- @include "lib/leases/verify_receipts"
--- @include "lib/settle/check_dead_keys"
local IDS_FROM = 6 -- first argument of the deliveries
local now, now_us = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local wait = ARGV[5] ~= '' and whole_number(ARGV[5], 0, WAIT_MOST_MS, 'wait_ms')
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
local n = (#ARGV - IDS_FROM + 1) / 3
local ids, letters, positions, scores = verify_receipts(IDS_FROM, n)
redis.call('ZCARD', store)
check_dead_keys(fields[AUDITED], fields[DEAD_TO])
if #ids == 0 then
  return letters
end
-- A valid receipt is equal to the score.
local receipts, details = scores, { unpack(ARGV, IDS_FROM + 2 * n) }
if #ids < n then -- keep the items of the valid deliveries only
  receipts = {}
  for m = 1, #ids do
    receipts[m], details[m] = scores[positions[m]], details[positions[m]]
  end
end
--- @include "lib/settle/fail_deliveries"
if fields[CANCELLING] then
  --- @include "lib/settle/remove_cancelled_from"
  -- This shortens ids, receipts, details and positions.
  local valid = { ids = ids, receipts = receipts, other_lists = { details, positions } }
  local cancelled = remove_cancelled_from(valid, now)
  letters = with_cancelled(letters, IDS_FROM, cancelled)
end
local outcomes = {}
if #ids > 0 then
  local failed = { ids = ids, receipts = receipts, details = details, reason = 'f', wait = wait }
  outcomes = fail_deliveries(failed, fields, now, now_us)
end
signal_given_back(fields, false, ARGV[3], ARGV[4], now)
local answer = table.concat(outcomes)
if #ids < n then
  local all_outcomes = {}
  for i = 1, n do
    all_outcomes[i] = string.sub(letters, i, i)
  end
  for m = 1, #ids do
    all_outcomes[positions[m]] = outcomes[m]
  end
  answer = table.concat(all_outcomes)
end
remember(ARGV[2], now, answer)
return answer
