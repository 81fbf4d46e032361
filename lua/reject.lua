--[[
reject: send deliveries to the DeadQueue at once, whatever retries remain.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  message id -> record
KEYS[4]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[5]   failures       hash  message id -> what it failed of
KEYS[6]   replay         str   the last answer given to this lane
KEYS[7]   audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               of this call in its lane
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, told to those it wakes
ARGV[5]   reason               r rejected by the handler, u undecodable
ARGV[6..] n message ids, their n receipts, then n times what the consumer tells of the error (at most 64 KiB)
Returns   a letter for each: d dead, 0 the lease is no longer the caller's
Cost      O(n log L), L = members of the slot; n is at most 1000
Atomic    As nack. Of a slot in order, the last of a batch wakes those who sleep until another may take.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/failure"
--- @include "lib/wake"
--- @include "lib/freed"
--- @include "lib/held"
local slot, prepare = KEYS[1], KEYS[2]
local now = clock(ARGV[1])
local before = replayed(KEYS[6], ARGV[2])
if before then
  return before
end
if ARGV[5] ~= 'r' and ARGV[5] ~= 'u' then
  fail('ARG', 'reason')
end
local s = redis.call('HMGET', slot, 'created', 'max_retries', 'dead_retention_ms', 'blocked', 'audited')
if not s[1] then
  fail('GONE', slot)
end
local n = (#ARGV - 5) / 3
local mine, letters, places, scores = held(prepare, 6, n)
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('HLEN', KEYS[5])
local audit = s[5] and KEYS[7]
if audit then
  redis.call('ZCARD', audit)
end
if #mine == 0 then
  return letters
end
redis.call('ZREM', prepare, unpack(mine))
for m = 1, #mine do
  local i = places[m]
  local made = tonumber(s[2]) - math.floor(tonumber(scores[i]) % 1000) + 1
  local told = string.sub(ARGV[5 + 2 * n + i], 1, 65536)
  bury(slot, KEYS[4], KEYS[3], KEYS[5], audit, mine[m], now, made, ARGV[5], told, tonumber(s[3]))
end
if freed(slot, prepare, s[4], now) then
  wake(slot, ARGV[3], ARGV[4])
end
local answer = string.gsub(letters, '1', 'd')
remember(KEYS[6], ARGV[2], answer)
return answer
