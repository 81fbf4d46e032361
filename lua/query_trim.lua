--[[
query_trim: forget what a query has settled: the beginning of its log.

KEYS[1]   slot           hash  only looked at: it is there
KEYS[2]   query log      zset  message id -> number, for what the query holds
ARGV[1]   upto                 up to this number
ARGV[2]   limit                1 to 1000
Returns   how many were forgotten; fewer than the limit where nothing is left up to there
Cost      O(log n + k), n = messages that the query holds, k = limit
Atomic    Removes from the log alone, and needs no memory: what was not settled stays in the PrepareQueue, so
          settle first. Run twice, it goes on.
]]
--- @include "lib/check"
local log = KEYS[2]
local upto, limit = whole(ARGV[1], 0, 9e15, 'upto'), whole(ARGV[2], 1, 1000, 'limit')
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
local page = redis.call('ZRANGEBYSCORE', log, '-inf', ARGV[1], 'LIMIT', 0, limit)
if #page > 0 then
  redis.call('ZREM', log, unpack(page))
end
return #page
