--[[
cancel: withdraw a waiting message.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  only read
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  only read
KEYS[6]   failures       hash  member -> failure entry
KEYS[7]   merge index    hash  merge key -> member and when it opened
KEYS[8]   settled even   set   members settled in even turns of the dedup window
KEYS[9]   settled odd    set   the same for odd turns
KEYS[10]  audit          zset  open numbers of audited messages
KEYS[11]  large bodies   hash  member and 8 bytes of the record -> body
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   member               13 bytes: the id without slot and check
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
Returns   cancelled; in_flight: a consumer has it; dead: it is in the DeadQueue; gone: not here
Cost      O(log L), L = messages waiting in the slot
Atomic    Only a waiting message is removed, with everything that belongs to it. An id that its sender made is remembered
          as settled, so a late repetition of that send stays cancelled. A dedup key is free again. Sent twice with one
          number, it gives the first answer.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/envelope"
--- @include "lib/large_bodies"
--- @include "lib/member"
--- @include "lib/record"
--- @include "lib/replay"
--- @include "lib/settled"
local slot, store, records, id = KEYS[1], KEYS[2], KEYS[4], ARGV[3]
local now = clock(ARGV[1])
local before = replayed(slot, ARGV[2])
if before then
  return before
end
local created, dedup_ms, settled_turn, audited = unpack(redis.call('HMGET', slot, 'created', 'dedup_ms', 'settled_turn',
  'audited'))
if not created then
  fail('GONE', slot)
end
local waiting = redis.call('ZSCORE', store, id)
if not waiting then
  if redis.call('ZSCORE', KEYS[3], id) then
    return 'in_flight'
  end
  return redis.call('ZSCORE', KEYS[5], id) and 'dead' or 'gone'
end
local record = redis.call('HGET', records, id)
redis.call('HLEN', KEYS[6])
redis.call('HLEN', KEYS[11])
redis.call('SCARD', KEYS[8])
redis.call('SCARD', KEYS[9])
local _, _, key
if record and #record >= FIXED then
  _, _, key = envelope(record)
end
local entry = key and redis.call('HGET', KEYS[7], key)
if audited then
  --- @include "lib/audit"
  account_for(slot, KEYS[10], 'accounted', add_numbers({ record }, number_of, {}), now)
end
--- @include "lib/leave_groups"
local bring_up = leaving_groups(slot, store, records, { id }, nil, nil, { waiting })
redis.call('ZREM', store, id)
drop_records(slot, records, KEYS[11], { id })
redis.call('HDEL', KEYS[6], id)
if entry and string.sub(entry, 1, MEMBER) == id then
  redis.call('HDEL', KEYS[7], key)
end
if bring_up and bring_up() then
  --- @include "lib/wake"
  wake_sleepers(slot, now, ARGV[4], ARGV[5])
end
redis.call('HINCRBY', slot, 'cancelled', 1)
local window, mark = tonumber(dedup_ms), string.byte(id, 1)
if window > 0 and mark >= KEPT and mark < DERIVED then
  remember_settled(slot, KEYS[8], KEYS[9], window, tonumber(settled_turn), now, { id })
end
remember(slot, ARGV[2], now, 'cancelled')
return 'cancelled'
