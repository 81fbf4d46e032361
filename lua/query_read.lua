--[[
query_read: hand out messages that a query holds, without changing anything.

KEYS[1]   slot           hash  only looked at: it is there
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  message id -> record
KEYS[4]   failures       hash  message id -> what it failed of
KEYS[5]   query log      zset  message id -> number, for what the query holds
ARGV[1]   after                numbers after this one
ARGV[2]   upto                 up to this one
ARGV[3]   limit                1 to 1000
ARGV[4]   with records         1, or 0: what they are known by, and never mind the rest
Returns   {numbers, ids, receipts as text ('' where the PrepareQueue has it no more), records}, in the order of
          their numbers; fewer than the limit where the range is at its end, or 16 MiB are full. Receipts are
          left out with records where nothing in the slot has ever failed: all have every retry then
Cost      O(log n + k), n = messages that the query holds, k = limit
Atomic    Reads only: one moment of one slot.
]]
--- @include "lib/check"
local prepare, records, failures, log = KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local after, upto = whole(ARGV[1], 0, 9e15, 'after'), whole(ARGV[2], 0, 9e15, 'upto')
local limit = whole(ARGV[3], 1, 1000, 'limit')
if redis.call('HEXISTS', KEYS[1], 'created') == 0 then
  fail('GONE', KEYS[1])
end
-- Numbers follow each other but where a lease ran out; scores that need not be told cost nothing.
local numbers, found, receipts = {}, {}, {}
local to = math.min(upto, after + limit)
local ids = redis.call('ZRANGEBYSCORE', log, '(' .. ARGV[1], string.format('%.0f', to))
if #ids == to - after then
  for i = 1, #ids do
    numbers[i] = after + i
  end
else
  local page = redis.call('ZRANGEBYSCORE', log, '(' .. ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', 0, limit)
  ids = {}
  for i = 1, #page, 2 do
    ids[#ids + 1], numbers[#numbers + 1] = page[i], tonumber(page[i + 1])
  end
end
redis.call('HLEN', records)
redis.call('ZCARD', prepare)
local any_failed = redis.call('HLEN', failures) > 0
if #ids == 0 then
  return { {}, {}, {}, {} }
end
local last = #ids
if ARGV[4] == '1' then
  local bytes = 0
  found = redis.call('HMGET', records, unpack(ids))
  for i = 1, #ids do
    bytes = bytes + (found[i] and #found[i] or 0)
    found[i] = found[i] or ''
    if bytes >= 16777216 then
      last = i
      break
    end
  end
end
if last < #ids then
  numbers, ids, found = { unpack(numbers, 1, last) }, { unpack(ids, 1, last) }, { unpack(found, 1, last) }
end
if any_failed or ARGV[4] ~= '1' then
  receipts = redis.call('ZMSCORE', prepare, unpack(ids))
  for i = 1, #ids do
    receipts[i] = receipts[i] or ''
  end
end
return { numbers, ids, receipts, found }
