--[[
query_settle: settle for good what a query holds, from the beginning of its log.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  message id -> record
KEYS[4]   failures       hash  message id -> what it failed of
KEYS[5]   settled even   set   ids settled in even turns of the dedup window
KEYS[6]   settled odd    set   the same for odd turns
KEYS[7]   audit          zset  numbers of messages that are not accounted for
KEYS[8]   query          hash  tail: the number of the newest in the log; settled; owner, and until when it is that
KEYS[9]   query log      list  ids of what the query holds; the last one's number is the tail
KEYS[10]  queries        zset  run of a query -> end of its lease, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   run                  of the query: 32 hex digits
ARGV[3]   owner                who runs it, 1 to 200 bytes
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, told to those it wakes
ARGV[6]   upto                 up to this number
ARGV[7]   limit                1 to 1000
Returns   {how many were settled, how many have left the log, ms the owner has left, the owner}: the last two only
          where another one has it, and nothing was done. Fewer than the limit have left where no more are up to there
Cost      O(k log L), k = limit, L = leases of the slot. In an audited slot also reading their records
Atomic    A message leaves the log in the step that settles it. One that the PrepareQueue has no more, or
          has for somebody else, only leaves the log. `settled` moves also over numbers whose messages have lapsed:
          a batch that ends there is done. The first write needs no memory. Run twice, it goes on.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/query"
--- @include "lib/settled"
local slot, prepare, log, queries = KEYS[1], KEYS[2], KEYS[9], KEYS[10]
local now = clock(ARGV[1])
names(ARGV[2], ARGV[3])
local upto, limit = whole(ARGV[6], 0, 9e15, 'upto'), whole(ARGV[7], 1, 1000, 'limit')
local s = redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn', 'blocked', 'audited', 'chunk')
if not s[1] then
  fail('GONE', slot)
end
local other, left = foreign(KEYS[8], ARGV[3], now)
local first, tail = extent(KEYS[8], log, 0)
local size = math.min(limit, math.min(upto, tail) - first)
if other then
  return { 0, 0, left, other }
end
local all = redis.call('ZCOUNT', prepare, string.format('%.0f', FAR * 1000), '+inf')
local holders = redis.call('ZCARD', queries)
local failed, window, turn, blocked = redis.call('HLEN', KEYS[4]), tonumber(s[2]), tonumber(s[3]), s[4]
local channel, index = ARGV[4], ARGV[5]
if window > 0 then
  settled_check(KEYS[5], KEYS[6], window, turn, now)
end
if size <= 0 then
  if math.min(upto, tail) > tonumber(redis.call('HGET', KEYS[8], 'settled') or 0) then
    drain(prepare)
    redis.call('HSET', KEYS[8], 'settled', math.min(upto, tail))
  end
  return { 0, 0 }
end
local page = redis.call('LRANGE', log, 0, size - 1)
local mine, settled = page, 0
-- A single query holds whatever has that deadline. So where that is as many as its log has, it is the same;
-- asking for each score would cost as much again as all the rest.
if holders > 1 or all ~= tail - first then
  local scores = redis.call('ZMSCORE', prepare, unpack(page))
  mine = {}
  for i = 1, #page do
    if scores[i] and tonumber(scores[i]) >= FAR * 1000 then
      mine[#mine + 1] = page[i]
    end
  end
end
if s[5] and #mine > 0 then
  --- @include "lib/depart"
  depart(slot, KEYS[7], 'seen', numbers_at(KEYS[3], mine, tonumber(s[6])), now)
end
if #mine > 0 then
  --- @include "lib/settle"
  settled = gone
end
redis.call('LTRIM', log, size, -1)
redis.call('HSET', KEYS[8], 'settled', first + size)
return { settled, size }
