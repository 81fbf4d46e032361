--[[
prepare: lease messages. Moves the messages that go next from the StoreQueue to the PrepareQueue and hands them over.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
KEYS[3]   PrepareQueue   zset  member -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  member -> record
KEYS[5]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[6]   failures       hash  member -> failure entry
KEYS[7]   merge index    hash  merge key -> member and when it opened
KEYS[8]   audit          zset  open numbers of audited messages
KEYS[9]   large bodies   hash  member and 8 bytes of the record -> body
KEYS[10]  leases         zset  number of a shared lease -> its end, epoch ms
KEYS[11]  rates          zset  key of a limit -> when its bucket will be full, epoch ms
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   limit                1 to 1000
ARGV[4]   lease_ms             1000 to 43 200 000; the deadline is rounded up to whole seconds
ARGV[5]   waits                1: the caller sleeps if this finds nothing, and wants to be woken; or a credit (lib/credits) that
                               it leaves then, for `limit` and `lease_ms`: +<number> <channel> and calls, or =<number> <channel>
                               for one that it has left before, which this renews or, where it finds messages, removes.
                               A call that is repeated removes it in any case, and leaves none
ARGV[6]   ordered              1: in order. Nothing is handed over while anything of the slot is in flight, and only one
                               message where a message of the slot has failed; 0: not in order, see below
ARGV[7]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[8]   shared         ''    each delivery has a deadline of its own; or the number of the shared lease that they are
                               under. Where it is gone, or for 0, a lease is opened; where less than half of lease_ms is
                               left of it, it is renewed
ARGV[9]   again                1 where an earlier copy of this call had no reply; else left out
Returns   {us until the slot next has work (0 now, -1 never), 1 if leases expired and want a rollback, 2 more if one of
          a query or a shared one has, 4 more if records refer to large bodies, 8 more if the credit stands now,
          16 more if this call repeats one with a credit, 32 times the hand-overs for which one that this removed
          was still good,
          deadline s (3 000 000 000 + the number of a shared lease), number of the first delivery, acceptance number of
          the newest message,
          retries remaining of each as one byte ('' when none has failed), members, records}
          A member of '' stands where the caller no longer holds a delivery of the first answer.
Cost      O(k log L), k = limit, plus at most 1000 due messages that join their priority; at most 4 MiB. With a limit for
          each key, up to 1000 records that wait and 1000 in flight are read first, at most 4 MiB of each
Atomic    All messages are read and checked before they move; the first write frees memory, so a full Redis can still be
          drained. Sent twice with one number, it hands over the same deliveries. A repeated call that found nothing is
          remembered too, so that the earlier copy takes nothing if it comes late. Messages that have expired are
          not handed over: they are dropped, or go to the DeadQueue.
          With a limit for each key it looks at 1000 waiting messages, or 4 MiB of them, and passes over those of held
          keys; what is behind waits. Where it finds no others, it writes a note (`held`) and takes nothing.
          A take in order sets the slot's `ordered`. Where that is set, a take not in order also waits for the
          deliveries in flight and for the hold; then it takes, and clears the field.
]]
local slot, store, prepare, records, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, merge, audit, bodies, rates = KEYS[6], KEYS[7], KEYS[8], KEYS[9], KEYS[11]
local call = ARGV[2]
--- @include "lib/inline/session"
--- @include "lib/inline/take_fields"
local known = s[14]

-- One message of a priority, asked for or all there is, or none and a credit, in a session that goes on, as most takes are
-- that do not find a batch. This is take_messages and make_receipts without anything that such a take does not need;
-- whatever is unusual goes the long way below.
local limit, takes, at_ms, at_us = tonumber(ARGV[3]) or 0, tonumber(s[6] or 0) + 1, nil, nil
if known and #ARGV == 8 and ARGV[6] == '0' and s[1] == ARGV[7] and not s[8] and not s[9] and not s[12] and not s[13]
    and string.byte(call, 1) == 64 and limit >= 1 and limit <= 1000 and tonumber(s[4] or 0) < 4294967296
    and tonumber(s[11] or 0) > -4294967296 and tonumber(s[5] or 0) < 1e12 -- see lib/delivery_numbers
    and tonumber(number) > tonumber(string.match(known, '^%d+')) and string.byte(ARGV[5], 1) ~= 61 then
  --- @include "lib/inline/time"
  at_ms, at_us = now_ms, now_us
  local page = redis.call('ZREVRANGEBYSCORE', store, string.format('(%d', now_ms + 1), 0, 'WITHSCORES', 'LIMIT', 0,
    limit > 1 and 2 or 1)
  local id, lease = page[1], tonumber(ARGV[4]) or 0
  local score = tonumber(page[2] or 0)
  local shared, lease_end = ARGV[8], nil -- see lib/shared_leases
  if shared ~= '' then
    lease_end = tonumber(redis.call('ZSCORE', KEYS[10], shared) or 0)
  end
  if not id and #ARGV[5] > 1 and lease >= 1000 and lease <= 43200000 and lease % 1 == 0 then
    --- @include "lib/credits"
    --- @include "lib/wake"
    local wait = next_ready_in(store, prepare, now_us, s[10])
    if wait ~= 0 then
      local kept = outlives_credit(lease_end, now_ms)
        and keep_credit(slot, store, ARGV[5], limit, lease_end and 's' .. shared or lease, call, now_ms)
      if not kept then
        note_sleeper(slot, store, 'waiting', now_ms)
      end
      return { wait, kept and 8 or 0, 0, tonumber(s[5] or 0) + 1, tonumber(s[7] or 0), '', {}, {} }
    end
  end
  if #page == 2 and score >= 17 and score < 1048576 and lease >= 1000 and lease <= 43200000 and lease % 1 == 0
      and (not lease_end or lease_end - now_ms >= lease / 2) and tonumber(s[10] or now_ms + 1) > now_ms
      and (takes % 5 > 0 or redis.call('ZCOUNT', store, '-inf', '(17') == 0) then -- one take in five begins with the retries
    local record = redis.call('HGET', records, id)
    --- @include "lib/inline/count_failed"
    if failed == 0 and record and #record >= 8 and string.byte(record, 1) % 16 < 2 then
      local expired = redis.call('ZCOUNT', prepare, '-inf', string.format('(%d', (seconds + 1) * 1000))
      local delivery = tonumber(s[5] or 0) + 1
      local deadline = lease_end and 3000000000 + shared or math.ceil((now_ms + lease) / 1000)
      local receipt = string.format('%d.%011d', deadline * 1000 + s[2], delivery % 2048 * 48828125)
      redis.call('ZREM', store, id)
      if takes % 16 == 0 then -- see lib/writes
        --- @include "lib/writes"
        add_many(prepare, { receipt, id })
      else
        redis.call('ZADD', prepare, receipt, id)
      end
      redis.call('HSET', slot, 'delivered', delivery, 'takes', takes, session,
        string.format('%s:%s:%d:%d:', number, seconds, deadline, delivery) .. id)
      local wait = 0
      if limit > 1 then
        --- @include "lib/wake"
        wait = next_ready_in(store, prepare, now_us, s[10])
      end
      return { wait, expired > 0 and 1 or 0, deadline, delivery, tonumber(s[7] or 0), '', { id }, { record } }
    end
  end
end

--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/replay"
local now, now_us = at_ms, at_us
if not now then
  now, now_us = clock(ARGV[1])
end
limit = whole_number(ARGV[3], 1, 1000, 'limit')
local lease = whole_number(ARGV[4], 1000, 43200000, 'lease_ms')
local waits, ordered = ARGV[5], ARGV[6] == '1'
local again, credit_bits = ARGV[9] == '1', 0
if #waits > 1 then
  --- @include "lib/credits"
  read_offer(waits)
end
session, number = session_of(call)
local before = answer_in(slot, known, number)
if again and #waits > 1 then -- an earlier copy may have left the credit, and its caller does not know
  --- @include "lib/credits"
  local _, _, channel = read_offer(waits)
  credit_bits, waits = 16 + 32 * remove_credit(slot, channel), '1'
end
if before then
  local deadline, first, leased = string.match(before, '^(%d+):(%d+):(.*)$')
  deadline, first = tonumber(deadline), tonumber(first)
  --- @include "lib/large_bodies"
  local any_large
  local reply, marks = { 0, credit_bits, deadline, first, tonumber(s[7] or 0), '', {}, {} }, {}
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
    if is_large(record) then
      any_large = true
    end
  end
  reply[2] = reply[2] + (any_large and 4 or 0)
  reply[6] = table.concat(marks)
  return reply
end

local created = ARGV[7]
local shared, lease_end = ARGV[8] ~= '' and whole_number(ARGV[8], 0, 900000000, 'shared'), 0
if shared then
  lease_end = tonumber(redis.call('ZSCORE', KEYS[10], ARGV[8]) or 0)
end
local credit_lease = shared and 's' .. ARGV[8] or lease
if #waits > 1 then
  --- @include "lib/credits"
  waits = outlives_credit(shared and lease_end, now) and waits or '1'
end
--- @include "lib/inline/take_messages"
local deadline, until_ms = math.ceil((now + lease) / 1000), tonumber(s[10] or nil)
if shared then
  --- @include "lib/shared_leases"
  shared, lease_end = lease_for_take(slot, KEYS[10], shared, lease_end, lease, now, until_ms)
  deadline, until_ms = SHARED + shared, math.min(until_ms or lease_end, lease_end)
end
--- @include "lib/inline/make_receipts"
if n < 8 then
  redis.call('ZADD', prepare, unpack(leases))
else
  --- @include "lib/writes"
  add_many(prepare, leases)
end
redis.call('HSET', slot, 'delivered', first + n - 1, 'takes', takes, session,
  kept_answer(number, now, string.format('%d:%.0f:', deadline, first) .. table.concat(ids, '', 1, n)))
if not known then
  sweep_sessions(slot, now, SWEPT)
end
reply[3] = deadline
if string.byte(waits, 1) == 61 then -- =
  --- @include "lib/credits"
  local _, _, channel = read_offer(waits)
  reply[2] = reply[2] + 32 * remove_credit(slot, channel)
end
if ordered then
  reply[1] = shared and lease_end * 1000 - now_us or deadline * 1000000 - now_us
elseif drained or gate then
  --- @include "lib/wake"
  reply[1] = next_ready_in(store, prepare, now_us, until_ms, nil, gate)
end
return reply
