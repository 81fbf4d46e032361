--[[
queries: list the queries that hold messages of a slot. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   queries        zset  run of a query -> end of its lease, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000
Returns   for each, the lease that ends first before the others: its run, and ms until its lease ends, negative
          where that has passed
Cost      O(k), k = limit
Atomic    Reads only.
]]
--- @include "lib/check"
--- @include "lib/clock"
local now = clock(ARGV[1])
local limit = whole(ARGV[2], 1, 1000, 'limit')
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
local reply = redis.call('ZRANGE', KEYS[2], 0, limit - 1, 'WITHSCORES')
for i = 2, #reply, 2 do
  reply[i] = math.floor(tonumber(reply[i])) - now
end
return reply
