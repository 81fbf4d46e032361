--[[
prepare: lease messages. Moves the messages that go next from the StoreQueue to the PrepareQueue and hands them over.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[6]   failures       hash  member -> failure entry
KEYS[7]   merge index    hash  merge key -> member and when it opened
KEYS[8]   replay         str   the last answer given to this session
KEYS[9]   audit          zset  open numbers of audited messages
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               sequence number of this call in its session
ARGV[3]   limit                1 to 1000
ARGV[4]   lease_ms             1000 to 43 200 000; the deadline is rounded up to whole seconds
ARGV[5]   waits                1: the caller sleeps if this finds nothing, and wants to be woken
ARGV[6]   ordered              1: in order. Nothing is handed over while anything of the slot is in flight, and only one
                               message where a message of the slot has failed; 0: not in order, see below
ARGV[7]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[8]   again                1 where an earlier copy of this call had no reply; else left out
Returns   {us until the slot next has work (0 now, -1 never), 1 if leases expired and want a rollback, 2 more if those of
          queries have,
          deadline s, number of the first delivery, acceptance number of the newest message,
          retries remaining of each as one byte ('' when none has failed), members, records}
          A member of '' stands where the caller no longer holds a delivery of the first answer.
Cost      O(k log L), k = limit, plus at most 1000 due messages that join their priority; at most 16 MiB
Atomic    All messages are read and checked before they move; the first write frees memory, so a full Redis can still be
          drained. Sent twice with one number, it hands over the same deliveries. A repeated call that found nothing is
          remembered too, so that the earlier copy takes nothing if it comes late. Messages that have expired are
          not handed over: they are dropped, or go to the DeadQueue.
          A take in order sets the slot's `ordered`. Where that is set, a take not in order also waits for the
          deliveries in flight and for the hold; then it takes, and clears the field.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/replay"
local slot, store, prepare, records, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, merge, session, audit = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, now_us = clock(ARGV[1])
local limit, waits, ordered = whole_number(ARGV[3], 1, 1000, 'limit'), ARGV[5], ARGV[6] == '1'
local lease = whole_number(ARGV[4], 1000, 43200000, 'lease_ms')

local before = replayed(session, ARGV[2])
if before then
  local deadline, first, leased = string.match(before, '^(%d+):(%d+):(.*)$')
  deadline, first = tonumber(deadline), tonumber(first)
  local accepted = tonumber(redis.call('HGET', slot, 'accepted') or 0)
  local reply, marks = { 0, 0, deadline, first, accepted, '', {}, {} }, {}
  for i = 1, #leased / MEMBER do
    local id = string.sub(leased, (i - 1) * MEMBER + 1, i * MEMBER)
    local score = tonumber(redis.call('ZSCORE', prepare, id) or -1)
    local record = score >= 0 and redis.call('HGET', records, id)
    local left = math.floor(score % 1000)
    if not record or score ~= deadline * 1000 + left + (first + i - 1) % 2048 / 2048 then
      id, record, left = '', '', 0
    end
    marks[i] = string.char(left)
    reply[7][i], reply[8][i] = id, record
  end
  reply[6] = table.concat(marks)
  return reply
end

local number, created, again = ARGV[2], ARGV[7], ARGV[8] == '1'
--- @include "lib/inline/take_messages"
local deadline = math.ceil((now + lease) / 1000)
--- @include "lib/inline/make_receipts"
if n < 8 then
  redis.call('ZADD', prepare, unpack(leases))
else
  --- @include "lib/writes"
  add_many(prepare, leases)
end
remember(session, number, string.format('%d:%.0f:', deadline, first) .. table.concat(ids, '', 1, n))
reply[3] = deadline
if ordered then
  reply[1] = deadline * 1000000 - now_us
elseif drained then
  --- @include "lib/wake"
  reply[1] = next_ready_in(store, prepare, now_us)
end
return reply
