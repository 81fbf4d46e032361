--[[
cancel: withdraw a waiting message. `prepare` and `dead` are only read.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   member               13 bytes: the id without slot and checksum
ARGV[4]   channel              where sleeping consumers of the topic listen
ARGV[5]   index                the slot's index, sent to the consumers that are woken
Returns   cancelled; in_flight: it is delivered; dead: it is in the DeadQueue; gone: not here
Cost      O(log L), L = messages waiting in the slot
Atomic    Only a waiting message is removed, with everything that belongs to it. If the sender keeps
          the id, it is remembered as settled, so a late repetition of the send stores nothing. A
          dedup key may be used again. A call that is sent twice gets the first answer again.
]]
--- @keys slot store prepare records dead failures merge settled0 settled1 audit bodies
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/envelope"
--- @include "lib/records/indexed_key"
--- @include "lib/records/large_bodies"
--- @include "lib/member"
--- @include "lib/replay"
--- @include "lib/send/dedup_window"
local id = ARGV[3]
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, dedup_ms, settled_turn, audited = unpack(redis.call('HMGET', slot, 'created',
  'dedup_ms', 'settled_turn', 'audited'))
if not created then
  fail('GONE', slot)
end
local waiting = redis.call('ZSCORE', store, id)
if not waiting then
  if redis.call('ZSCORE', prepare, id) then
    return 'in_flight'
  end
  return redis.call('ZSCORE', dead, id) and 'dead' or 'gone'
end
local record = redis.call('HGET', records, id)
redis.call('HLEN', failures)
redis.call('HLEN', bodies)
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
local _, _, key = envelope(record or '')
local merge_key = indexed_key(key, id)
if audited then
  --- @include "lib/audit"
  account_for('accounted', add_numbers({ record }, number_of, {}), now)
end
--- @include "lib/groups/leave_groups"
local let_next_out = leaving_groups({ id }, nil, nil, { waiting })
redis.call('ZREM', store, id)
drop_records({ id })
redis.call('HDEL', failures, id)
if merge_key then
  redis.call('HDEL', merge, merge_key)
end
if let_next_out and let_next_out() then
  --- @include "lib/wake/wake"
  wake_sleepers(now, ARGV[4], ARGV[5])
end
redis.call('HINCRBY', slot, 'cancelled', 1)
local window, first_byte = tonumber(dedup_ms), string.byte(id, 1)
if window > 0 and first_byte >= KEPT and first_byte < DERIVED then
  remember_settled(window, tonumber(settled_turn), now, { id })
end
remember(ARGV[2], now, 'cancelled')
return 'cancelled'
