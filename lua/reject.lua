--[[
reject: send deliveries to the DeadQueue at once, however many retries remain.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[3]   records        hash  member -> record
KEYS[4]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[5]   failures       hash  member -> failure entry
KEYS[6]   audit          zset  open numbers of audited messages
KEYS[7]   large bodies   hash  member and 8 bytes of the record -> body
KEYS[8]   StoreQueue     zset  of a slot with groups: the next messages of them go out
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   reason               r rejected by the handler, u undecodable, n no handler for its type
ARGV[6..] n members (13 bytes each), their n receipts, then for each the consumer's error (at most 64 KiB)
Returns   a letter for each: d dead, 0 the caller no longer holds the lease
Cost      O(n log L), L = members of the slot; n is at most 1000
Atomic    As nack. In a slot in order, the last reject of a batch wakes the consumers that wait for the batch to end.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/dead_letters"
--- @include "lib/wake"
--- @include "lib/in_order"
--- @include "lib/leave_groups"
--- @include "lib/receipts"
local slot, prepare = KEYS[1], KEYS[2]
local now = clock(ARGV[1])
local before = replayed(slot, ARGV[2])
if before then
  return before
end
if ARGV[5] ~= 'r' and ARGV[5] ~= 'u' and ARGV[5] ~= 'n' then
  fail('ARG', 'reason')
end
local created, max_retries, dead_retention_ms, blocked, audited = unpack(redis.call('HMGET', slot, 'created', 'max_retries',
  'dead_retention_ms', 'blocked', 'audited'))
if not created then
  fail('GONE', slot)
end
local n = (#ARGV - 5) / 3
local held_ids, letters, positions, scores = verify_receipts(prepare, 6, n)
redis.call('HLEN', KEYS[3])
redis.call('ZCARD', KEYS[4])
redis.call('HLEN', KEYS[5])
redis.call('HLEN', KEYS[7])
local audit = audited and KEYS[6]
if audit then
  redis.call('ZCARD', audit)
end
if #held_ids == 0 then
  return letters
end
local bring_up = leaving_groups(slot, KEYS[8], KEYS[3], held_ids, true)
redis.call('ZREM', prepare, unpack(held_ids))
local mades, details = {}, {}
for m = 1, #held_ids do
  local i = positions[m]
  mades[m] = math.max(1, tonumber(max_retries) - math.floor(tonumber(scores[i]) % 1000) + 1)
  details[m] = string.sub(ARGV[5 + 2 * n + i], 1, DETAILS_BYTES)
end
add_dead(slot, KEYS[4], KEYS[3], KEYS[7], KEYS[5], audit, held_ids, now, mades, ARGV[5], details, tonumber(dead_retention_ms))
local moved = bring_up and bring_up()
if unblock(slot, prepare, blocked, now) then
  wake(slot, ARGV[3], ARGV[4])
elseif moved then
  wake_sleepers(slot, now, ARGV[3], ARGV[4])
end
local answer = string.gsub(letters, '1', 'd')
remember(slot, ARGV[2], now, answer)
return answer
