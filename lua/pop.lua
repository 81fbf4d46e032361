--[[
pop: take messages for good, at most once: what is handed over here is settled, whatever becomes of it.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  message id -> score
KEYS[3]   PrepareQueue   zset  only read, for the time of the next rollback
KEYS[4]   records        hash  message id -> record
KEYS[5]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[6]   failures       hash  message id -> what it failed of
KEYS[7]   merge index    hash  merge key -> id and when it opened
KEYS[8]   settled even   set   ids settled in even turns of the dedup window
KEYS[9]   settled odd    set   the same for odd turns
KEYS[10]  replay         str   the last answer given to this lane
KEYS[11]  audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               of this call in its lane
ARGV[3]   limit                1 to 1000
ARGV[4]   waits                1: the caller sleeps if this finds nothing, and wants to be woken
Returns   as prepare, with a deadline of 0
Cost      O(k log L), k = limit, plus at most 1000 due messages that join their priority; at most 16 MiB
Atomic    As prepare. The batch is kept in the lane for a minute: a call re-sent after a lost reply gets
          the same messages, so only the death of the caller loses any. In a slot in order it waits for
          what is in flight and for the hold; then it takes, and ends the order.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/families"
--- @include "lib/replay"
--- @include "lib/settled"
local slot, store, prepare, records, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, merge, lane, audit = KEYS[6], KEYS[7], KEYS[10], KEYS[11]
local now, now_us = clock(ARGV[1])
local limit, waits, ordered = whole(ARGV[3], 1, 1000, 'limit'), ARGV[4], false
local before = replayed(lane, ARGV[2])
if before then
  return cmsgpack.unpack(before)
end
redis.call('SCARD', KEYS[8])
redis.call('SCARD', KEYS[9])

--- @include "lib/take"
redis.call('HDEL', records, unpack(ids))
redis.call('HDEL', failures, unpack(ids))
redis.call('HINCRBY', slot, 'settled', n)
local window = redis.call('HMGET', slot, 'dedup_ms', 'settled_turn')
if tonumber(window[1]) > 0 then
  settled_remember(slot, KEYS[8], KEYS[9], tonumber(window[1]), tonumber(window[2]), now, ids)
end
if s[9] then
  --- @include "lib/depart"
  depart(slot, audit, 'seen', numbers_in(found, number_of, {}), now)
end
if drained then
  --- @include "lib/soon"
  reply[1] = soon(store, prepare, now_us)
end
remember(lane, ARGV[2], cmsgpack.pack(reply))
return reply
