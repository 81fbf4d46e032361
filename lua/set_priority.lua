--[[
set_priority: give one waiting message another priority. The message becomes the newest message of
that priority. A timed message keeps its time, and its place at that time. A retry keeps its place
among the retries.
`prepare` and `dead` are only read.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   member               13 bytes: the id without slot and checksum
ARGV[4]   priority             17 to 1 048 575
Returns   changed; unchanged: it had that priority before; or in_flight | dead | gone
Cost      O(log L + size of the record)
Atomic    Score and record change together. A call that is sent twice gets the first answer again.
]]
--- @keys slot store prepare records dead
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"
--- @include "lib/records/record_bytes"
--- @include "lib/find_waiting"
--- @include "lib/replay"
local id = ARGV[3]
local now = clock(ARGV[1])
local priority = whole_number(ARGV[4], PRIORITY_MIN, PRIORITY_END - 1, 'priority')
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local score, record = find_waiting(id)
if not score then
  return record
end
if priority_of(record) == priority then
  return 'unchanged'
end
local low = priority % 65536
local bytes = string.char((priority - low) / 65536, math.floor(low / 256), low % 256)
redis.call('HSET', records, id, string.sub(record, 1, 1) .. bytes .. string.sub(record, 5))
if score >= TIMED_MIN then
  local place = timed_fraction(score)
  local with_priority = timed_score(math.floor(score), place, 1)
  redis.call('ZADD', store, with_priority, id)
elseif score < 0 or redis.call('HEXISTS', slot, 'groups') == 1 then
  --- @include "lib/groups/groups"
  change_priority(redis.call('HGET', slot, 'groups'), record, id, score, priority)
elseif score >= PRIORITY_MIN then
  redis.call('ZADD', store, ordered_score(priority, redis.call('HINCRBY', slot, 'order', 1)), id)
end
remember(ARGV[2], now, 'changed')
return 'changed'
