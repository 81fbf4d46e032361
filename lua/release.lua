--[[
release: give deliveries back unworked. It costs no retry; the message goes to the front of its priority or of the due
messages, or waits as long as the caller says (snooze).

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   failures       hash  only read: whether a message has failed before
KEYS[5]   records        hash  only read, where deliveries are from before the slot was in order
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   wait_ms              0 at once, to the front; at most 10 years
ARGV[6..] n members (13 bytes each) in the order in which they were delivered, their n receipts, then for each the place
          it was taken from: its priority, or when it was due (epoch ms) if it has none
Returns   a letter for each: 1 released, 0 the caller no longer holds the lease
Cost      O(n log L), L = members of the slot; n is at most 1000
Atomic    Only a member whose score equals the receipt moves. The first write frees memory. Sent twice with one number,
          it gives the first answer. In a slot in order each message takes its old place again, and the slot gives
          nothing before the wait is over.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/score"
--- @include "lib/timed_score"
--- @include "lib/replay"
--- @include "lib/wake"
--- @include "lib/receipts"
--- @include "lib/in_order"
--- @include "lib/given_back"
local slot, store, prepare = KEYS[1], KEYS[2], KEYS[3]
local now = clock(ARGV[1])
local before = replayed(slot, ARGV[2])
if before then
  return before
end
local wait = whole_number(ARGV[5], 0, 315576000000, 'wait_ms')
local s = redis.call('HMGET', slot, 'created', 'max_retries', 'front', 'waiting', 'retry', 'ordered', 'blocked')
if not s[1] then
  fail('GONE', slot)
end
local n = (#ARGV - 5) / 3
local held_ids, letters, positions, scores = verify_receipts(prepare, 6, n)
redis.call('ZCARD', store)
redis.call('HLEN', KEYS[4])
redis.call('HLEN', KEYS[5])
for i = 1, n do
  local place = whole_number(ARGV[5 + 2 * n + i], PRIORITY_MIN, 9e15, 'place')
  if place >= PRIORITY_END and place < TIMED_MIN then
    fail('ARG', 'place')
  end
end
if #held_ids == 0 then
  return letters
end
-- Where retries wait, a message that failed is at its priority, and the failures hash knows the deliveries that it has left;
-- where they do not, it is among the retries.
local at_once = string.sub(s[5], 1, 1) == '0'
local all_left, front = tonumber(s[2]) + 1, tonumber(s[3] or 0) - #held_ids
local add, in_order = {}, s[6] and read_places(slot, s[6])
for m = 1, #held_ids do
  local i = positions[m]
  local left, place = math.floor(tonumber(scores[i]) % 1000) + 1, tonumber(ARGV[5 + 2 * n + i])
  local score
  if in_order then
    local record = in_order.mixed and redis.call('HGET', KEYS[5], held_ids[m])
    score = old_score(in_order, place, tonumber(scores[i]), record)
    hold_for(in_order, held_ids[m], wait > 0 and now + wait or 0)
  elseif wait > 0 then
    score = next_timed_score(store, now + wait, 1)
  elseif left < all_left and (at_once or redis.call('HEXISTS', KEYS[4], held_ids[m]) == 0) then
    score = ordered_score(left, front + m)
  else
    score = front_score(place, front + m)
  end
  add[2 * m - 1], add[2 * m] = score, held_ids[m]
end
redis.call('ZREM', prepare, unpack(held_ids))
redis.call('ZADD', store, unpack(add))
if in_order then
  write_places(slot, in_order)
else
  redis.call('HSET', slot, 'front', front)
end
note_given_back(slot)
if unblock(slot, prepare, s[7], now) or is_awaited(s[4], now) then
  wake(slot, ARGV[3], ARGV[4])
end
remember(slot, ARGV[2], now, letters)
return letters
