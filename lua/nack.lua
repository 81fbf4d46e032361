--[[
nack: give deliveries back as failed. Each costs a retry: a message with none remaining goes to the DeadQueue.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  message id -> score
KEYS[3]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  message id -> record
KEYS[5]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[6]   failures       hash  message id -> what it failed of
KEYS[7]   replay         str   the last answer given to this lane
KEYS[8]   audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               of this call in its lane
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, told to those it wakes
ARGV[5]   wait_ms        ''    until the retry, else the topic's policy; 0 at once; at most 10 years
ARGV[6..] n message ids, their n receipts, then n times what the consumer tells of the error (at most 64 KiB)
Returns   a letter for each: r goes back for a retry, d dead, 0 the lease is no longer the caller's
Cost      O(n log L), L = members of the slot; n is at most 1000. In a slot in order also reading their records
Atomic    Only a member whose score equals the receipt moves. The first write frees memory. Run twice with
          one number, it gives the first answer and burns no second retry. In a slot in order each goes back
          to its old place, and the slot gives nothing before the longest of their waits is over.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/score"
--- @include "lib/timed"
--- @include "lib/replay"
--- @include "lib/wake"
--- @include "lib/freed"
--- @include "lib/failure"
--- @include "lib/retry"
--- @include "lib/held"
--- @include "lib/in_order"
--- @include "lib/home"
local slot, store, prepare, failures = KEYS[1], KEYS[2], KEYS[3], KEYS[6]
local now, now_us = clock(ARGV[1])
local before = replayed(KEYS[7], ARGV[2])
if before then
  return before
end
local wait = ARGV[5] ~= '' and whole(ARGV[5], 0, 315576000000, 'wait_ms')
local s = redis.call('HMGET', slot, 'created', 'max_retries', 'retry', 'jitter', 'waiting', 'dead_retention_ms',
  'ordered', 'blocked', 'audited')
if not s[1] then
  fail('GONE', slot)
end
local n = (#ARGV - 5) / 3
local mine, letters, places, scores = held(prepare, 6, n)
redis.call('ZCARD', store)
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', failures)
local audit = s[9] and KEYS[8]
if audit then
  redis.call('ZCARD', audit)
end
if #mine == 0 then
  return letters
end
local max_retries, marks = tonumber(s[2]), {}
local in_order = s[7] and places_of(slot, s[7])
math.randomseed(now_us % 2147483647)
redis.call('ZREM', prepare, unpack(mine))
for i = 1, n do
  marks[i] = '0'
end
for m = 1, #mine do
  local i = places[m]
  local left = math.floor(tonumber(scores[i]) % 1000)
  local made, told = max_retries - left + 1, string.sub(ARGV[5 + 2 * n + i], 1, 65536)
  if left == 0 then
    marks[i] = 'd'
    bury(slot, KEYS[5], KEYS[4], failures, audit, mine[m], now, made, 'f', told, tonumber(s[6]))
  else
    marks[i] = 'r'
    local pause = wait or ladder_wait(s[3], tonumber(s[4]), made)
    local place = in_order
      and failed_place(in_order, KEYS[4], mine[m], tonumber(scores[i]), pause > 0 and now + pause or 0)
    give_back(slot, store, failures, mine[m], now, left, made, pause, 'f', told, place)
  end
end
if in_order then
  keep_places(slot, in_order)
end
if freed(slot, prepare, s[8], now) or awaited(s[5], now) then
  wake(slot, ARGV[3], ARGV[4])
end
local answer = table.concat(marks)
remember(KEYS[7], ARGV[2], answer)
return answer
