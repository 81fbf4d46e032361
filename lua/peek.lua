--[[
peek: read a page of one queue of a slot. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   queue          zset  the StoreQueue, PrepareQueue or DeadQueue: member -> score
KEYS[3]   records        hash  member -> record
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   leases         zset  number of a shared lease -> its end, epoch ms
ARGV[1]   low                  smallest score, as for ZRANGEBYSCORE
ARGV[2]   high                 largest score
ARGV[3]   order                up or down
ARGV[4]   offset               how many to pass over
ARGV[5]   limit                1 to 1000
Returns   {acceptance number of the newest, member, score as text, record or '', failure or '', end of its shared
          lease in epoch ms or '', member, ...}: at most 4 MiB of
          records and failures, so a page may be short; an empty page is the end
Cost      O(log L + offset + limit)
Atomic    Reads only. A message that moves between two pages may be seen twice or not at all.
]]
--- @include "lib/check"
--- @include "lib/shared_leases"
local s = redis.call('HMGET', KEYS[1], 'created', 'accepted')
if not s[1] then
  fail('GONE', KEYS[1])
end
redis.call('ZCARD', KEYS[5])
local offset, limit = whole_number(ARGV[4], 0, NUMBER_MOST, 'offset'), whole_number(ARGV[5], 1, MOST, 'limit')
local page
if ARGV[3] == 'down' then
  page = redis.call('ZREVRANGEBYSCORE', KEYS[2], ARGV[2], ARGV[1], 'WITHSCORES', 'LIMIT', offset, limit)
else
  page = redis.call('ZRANGEBYSCORE', KEYS[2], ARGV[1], ARGV[2], 'WITHSCORES', 'LIMIT', offset, limit)
end
local reply, bytes = { tonumber(s[2] or 0) }, 0
for i = 1, #page, 2 do
  local record = redis.call('HGET', KEYS[3], page[i]) or ''
  local told = redis.call('HGET', KEYS[4], page[i]) or ''
  bytes = bytes + #record + #told
  if bytes > READ_BYTES and i > 1 then
    break
  end
  local n = #reply
  reply[n + 1], reply[n + 2] = page[i], string.format('%.17g', tonumber(page[i + 1]))
  reply[n + 3], reply[n + 4], reply[n + 5] = record, told, shared_end(KEYS[5], tonumber(page[i + 1]))
end
return reply
