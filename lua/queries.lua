--[[
queries: list the queries that hold messages of a slot.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   queries        zset  run of a query -> end of its lease, epoch ms
KEYS[3]   leases         zset  number of a shared lease -> its end, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000
Returns   for each, in the order in which their leases end: its run, and ms until its lease ends, negative after that
Cost      O(k), k = limit
Atomic    One moment of one slot. The only write corrects `leases_until` of the slot, which is when the first lease
          ends: consumers go by it when they take, and a time that has passed without such a lease would make them ask
          for ever. The write needs no memory. A second run does the same.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/shared_leases"
--- @include "lib/writes"
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
local reply = redis.call('ZRANGE', KEYS[2], 0, limit - 1, 'WITHSCORES')
redis.call('ZCARD', KEYS[3])
allow_oom(KEYS[2])
note_first_end(KEYS[1], KEYS[2], KEYS[3])
for i = 2, #reply, 2 do
  reply[i] = math.floor(tonumber(reply[i])) - now
end
return reply
