--[[
reschedule: give one waiting message another consume time. `prepare` and `dead` are only read.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   member               13 bytes: the id without slot and checksum
ARGV[6]   due                  epoch ms, also a past time; a value below 1e12 is a delay in ms
Returns   {'rescheduled', due in epoch ms}, or {in_flight | dead | gone, 0}
Cost      O(log L + size of the record)
Atomic    Score and record change together. Priority and retries stay, an expiry moves with the
          time. If the message waits for an event, its time limit ends at the new time. A call that
          is sent twice gets the first answer again, and a delay counts from the first run. A slot
          in order that waited for this message no longer waits.
]]
--- @keys slot store prepare records dead bodies
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/events/waits"
--- @include "lib/scores/score_ranges"
--- @include "lib/scores/timed_score"
--- @include "lib/records/record_bytes"
--- @include "lib/records/envelope"
--- @include "lib/wake/wake"
--- @include "lib/find_waiting"
--- @include "lib/replay"
local id = ARGV[5]
local now = clock(ARGV[1])
local due = whole_number(ARGV[6], 0, DUE_MOST, 'due')
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return { 'rescheduled', tonumber(earlier_answer) }
end
if due < TIMED_MIN then
  due = now + due
end
local score, record = find_waiting(id)
if not score then
  return { record, 0 }
end
local head = string.byte(record, 1)
local old_due, expiry = envelope(record)
if head % (2 * TIMED) >= TIMED and not old_due then
  fail('RECORD', records)
end
local at = old_due and 15 or 9
local rest = string.sub(record, at)
if expiry then
  rest = write48(math.min(expiry + due - (old_due or now), DUE_MOST)) .. string.sub(record, at + 6)
end
if not old_due then
  head = head + TIMED
end
--- @include "lib/groups/leave_groups"
local let_next_out = score < PRIORITY_END and leaving_groups({ id }, { scores = { score } })
local wait = redis.call('HGET', bodies, id .. 'w')
local event_key = awaited_key(wait)
local fixed = string.char(head) .. string.sub(record, 2, 8)
redis.call('HSET', records, id, fixed .. write48(due) .. rest)
local has_priority = priority_of(record) > 0 and 1 or 0
local place, had_priority = timed_fraction(score)
if math.floor(score) == due then
  if had_priority ~= has_priority then
    local same_place = timed_score(due, place, has_priority)
    redis.call('ZADD', store, same_place, id)
  end
else
  redis.call('ZADD', store, next_timed_score(due, has_priority), id)
end
if let_next_out then
  let_next_out()
end
if event_key then
  local changed = string.sub(wait, 1, LIMIT_AT - 1) .. write48(due) .. event_key
  redis.call('HSET', bodies, id .. 'w', changed)
end
local waiting, holder, blocked =
  unpack(redis.call('HMGET', slot, 'waiting', 'holder', 'blocked'))
if holder == id then
  redis.call('HDEL', slot, 'holder')
end
if is_awaited(waiting, now) or holder == id and is_awaited(blocked, now) then
  wake(ARGV[3], ARGV[4])
end
remember(ARGV[2], now, string.format('%.0f', due))
return { 'rescheduled', due }
