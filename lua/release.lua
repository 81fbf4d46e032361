--[[
release: give deliveries back that were not worked on. It costs no retry. A message goes to the
front of its priority or of the due messages, or waits as long as the caller says (snooze). It may
also wait for an event, which ends this wait (lib/events/waits).
`failures` and `records` are only read: whether a message has failed before, and its group.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   wait_ms              0 at once, to the front; at most 10 years
ARGV[6]   event          ''    or the key of the event for which the messages wait
ARGV[7..] n members (13 bytes each) in the order in which they were delivered, their n receipts,
          and for each member its priority, or when it was due (epoch ms) if it has no priority
Returns   a letter for each: 1 released, c its cancellation was requested, so it is deleted; 0 the
          receipt is no longer valid
Cost      O(n log L), L = members of the slot; n is at most 1000
Atomic    Only a member whose score equals the receipt moves. The first write frees memory. A call
          that is sent twice gets the first answer again. In a slot in order, each message goes back
          to its old place, and no message is taken before the wait is over.
]]
--- @keys slot store prepare failures records audit bodies settled0 settled1 results keeping waits
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/event_bounds"
--- @include "lib/slot_fields"
--- @include "lib/scores/score_ranges"
--- @include "lib/replay"
--- @include "lib/leases/verify_receipts"
local IDS_FROM = 7 -- first argument of the deliveries
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local wait = whole_number(ARGV[5], 0, WAIT_MOST_MS, 'wait_ms')
local fields = read_return_fields()
if not fields[CREATED] then
  fail('GONE', slot)
end
local event_key = ARGV[6]
if #event_key > KEY_MOST or event_key ~= '' and wait == 0 then
  fail('ARG', 'event')
end
local n = (#ARGV - IDS_FROM + 1) / 3
local places_from = IDS_FROM + 2 * n -- first argument of the places
local valid_ids, letters, positions, scores = verify_receipts(IDS_FROM, n)
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
redis.call('HLEN', failures)
redis.call('HLEN', records)
redis.call('HLEN', bodies)
redis.call('ZCARD', waits)
for i = 1, n do
  local place = whole_number(ARGV[places_from + i - 1], PRIORITY_MIN, NUMBER_MOST, 'place')
  if place >= PRIORITY_END and place < TIMED_MIN then
    fail('ARG', 'place')
  end
end
if #valid_ids == 0 then
  return letters
end
local receipts, places = {}, {}
for m = 1, #valid_ids do
  receipts[m] = tonumber(scores[positions[m]])
  places[m] = tonumber(ARGV[places_from + positions[m] - 1])
end
--- @include "lib/settle/release_deliveries"
local later = wait > 0
if fields[CANCELLING] then
  --- @include "lib/settle/remove_cancelled_from"
  -- This shortens valid_ids, receipts and places.
  local valid = { ids = valid_ids, receipts = receipts, other_lists = { places } }
  local cancelled = remove_cancelled_from(valid, now)
  letters = with_cancelled(letters, IDS_FROM, cancelled)
  later = later and #cancelled == 0
end
if #valid_ids > 0 then
  local are_suspended = event_key ~= ''
  local released = {
    ids = valid_ids, receipts = receipts, places = places, are_suspended = are_suspended,
  }
  release_deliveries(released, fields, wait, now)
  if are_suspended then
    --- @include "lib/events/suspend"
    suspend(valid_ids, event_key, now, now + wait)
  end
end
signal_given_back(fields, later, ARGV[3], ARGV[4], now)
remember(ARGV[2], now, letters)
return letters
