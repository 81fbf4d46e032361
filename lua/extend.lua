--[[
extend: change the deadlines of leases, counted from now. The receipts change with them.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   lease_ms             1000 to 43 200 000, from now; rounded up to whole seconds
ARGV[4..] n members (13 bytes each) and their n receipts
Returns   the new deadline in s, a space, and a letter for each: 1 extended, c extended, but its
          cancellation was requested, 0 the receipt is no longer valid. A new receipt is the old
          receipt with the new deadline.
Cost      O(n log L), L = leases of the slot; n is at most 1000
Atomic    Only a member whose score equals the receipt changes. A call that is sent twice gets the
          first answer again.
]]
--- @keys slot prepare
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
--- @include "lib/replay"
--- @include "lib/leases/verify_receipts"
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local lease = whole_number(ARGV[3], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local created, cancelling = unpack(redis.call('HMGET', slot, 'created', 'cancelling'))
if not created then
  fail('GONE', slot)
end
local valid_ids, letters, positions, scores = verify_receipts(4, (#ARGV - 3) / 2)
local deadline = math.ceil((now + lease) / 1000)
if #valid_ids == 0 then
  return string.format('%d ', deadline) .. letters
end
local change = {}
if cancelling then
  --- @include "lib/settle/cancel_requests"
  local receipts, marked = {}, {}
  for m = 1, #valid_ids do
    receipts[m] = scores[positions[m]]
  end
  local requests = find_requests(valid_ids, receipts)
  for i = 1, #letters do
    marked[i] = string.sub(letters, i, i)
  end
  for m = 1, #valid_ids do
    marked[positions[m]] = requests[m] and 'c' or '1'
  end
  letters = table.concat(marked)
end
local answer = string.format('%d ', deadline) .. letters
for m = 1, #valid_ids do
  change[2 * m - 1] = deadline * 1000 + tonumber(scores[positions[m]]) % 1000
  change[2 * m] = valid_ids[m]
end
allow_oom(prepare)
redis.call('ZADD', prepare, unpack(change))
remember(ARGV[2], now, answer)
return answer
