--[[
bury: put a popped message into the DeadQueue after all, because nobody can read it.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  only read
KEYS[3]   PrepareQueue   zset  only read
KEYS[4]   records        hash  message id -> record
KEYS[5]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[6]   failures       hash  message id -> what it failed of
KEYS[7]   audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   id                   16 bytes
ARGV[3]   record               as pop gave it
ARGV[4]   told                 what the consumer tells of the error (at most 64 KiB)
Returns   1 buried, 0 the id is in one of the queues
Cost      O(log L + size of the record)
Atomic    Types are checked before the first write. Run twice, the second run finds it dead.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drain"
--- @include "lib/failure"
local slot, records, dead, failures, id = KEYS[1], KEYS[4], KEYS[5], KEYS[6], ARGV[2]
local now = clock(ARGV[1])
local s = redis.call('HMGET', slot, 'created', 'dead_retention_ms', 'audited')
if not s[1] then
  fail('GONE', slot)
end
if #id ~= 16 or #ARGV[3] < 8 then
  fail('ARG', 'record')
end
redis.call('HLEN', failures)
local audit = s[3] and KEYS[7]
if audit then
  redis.call('ZCARD', audit)
end
if redis.call('ZSCORE', KEYS[2], id) or redis.call('ZSCORE', KEYS[3], id) or redis.call('ZSCORE', dead, id)
  or redis.call('HEXISTS', records, id) == 1 then
  return 0
end
drain(dead)
redis.call('HSET', records, id, ARGV[3])
bury(slot, dead, records, failures, audit, id, now, 1, 'u', string.sub(ARGV[4], 1, 65536), tonumber(s[2]))
return 1
