--[[
prepare: lease messages. Moves the messages that go next from the StoreQueue to the PrepareQueue and hands them over.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   limit                1 to 1000
ARGV[4]   lease_ms             1000 to 43 200 000; the deadline is rounded up to whole seconds
ARGV[5]   waits                1: the caller sleeps if this finds nothing, and wants to be woken; or a credit (lib/wake/credits)
                               that it leaves then, for `limit` and `lease_ms`: +<number> <channel> and calls; with * in its place
                               where such a number was heard there; or =<channel> for one that it has left before, which this
                               renews where it would end soon or, where it finds messages, removes.
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
          16 more if this call repeats one with a credit, 32 times the hand-overs for which the credit is still good,
          or was when this removed it,
          deadline s (3 000 000 000 + the number of a shared lease), number of the first delivery, acceptance number of
          the newest message,
          retries remaining of each as one byte ('' when none has failed), members, records}
          A member of '' stands where the caller no longer holds a delivery of the first answer.
          A record of '' is missing or shorter than 8 bytes: the caller rejects its message.
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
--- @keys slot store prepare records dead failures merge audit bodies leases rates
--- @include "lib/add"
--- @include "lib/bounds"
--- @include "lib/split_call"
--- @include "lib/scores/counters"
--- @include "lib/take/delivery_numbers"
--- @include "lib/settle/count_failed"
--- @include "lib/leases/receipt"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
--- @include "lib/slot_fields"
--- @include "lib/read_time"
--- @include "lib/take/turns"
local ARGS = 8 -- of a call that is no repetition
local call, waits, ordered, created, shared = ARGV[2], ARGV[5], ARGV[6] == '1', ARGV[7], ARGV[8]
local session, number = split_call(call)
local fields = read_take_fields(session)
local known = fields[SESSION]

-- One message of a priority, asked for or all there is, or none and a credit, in a session that goes on, as most takes are
-- that do not find a batch. This is take_messages and receipts_of without anything that such a take does not need;
-- whatever is unusual goes the long way below. A caller of many that does not wait mostly finds a batch.
local limit, lease, takes, now, now_us = tonumber(ARGV[3]) or 0, tonumber(ARGV[4]) or 0, tonumber(fields[TAKES] or 0) + 1, nil, nil
local none_due = false
if known and #ARGV == ARGS and not ordered and ARGV[6] == '0' and fields[CREATED] == created and not fields[ORDERED]
    and not fields[AUDITED] and not fields[PAUSED] and not fields[LIMIT] and string.byte(call, 1) == AT
    and limit >= 1 and limit <= MOST and (limit == 1 or waits ~= '0')
    and lease >= LEASE_LEAST_MS and lease <= LEASE_MOST_MS and lease % 1 == 0
    and tonumber(fields[ORDER] or 0) < ORDER_END and tonumber(fields[FRONT] or 0) > -ORDER_END
    and tonumber(fields[DELIVERED] or 0) < BY_CLOCK
    and tonumber(number) > tonumber(string.match(known, '^%d+')) and string.byte(waits, 1) ~= RENEWS then
  local seconds
  now, now_us, seconds = read_time(ARGV[1])
  local page = redis.call('ZREVRANGEBYSCORE', store, string.format('(%d', now + 1), 0, 'WITHSCORES', 'LIMIT', 0,
    limit > 1 and 2 or 1)
  local id, score, delivery = page[1], tonumber(page[2] or 0), tonumber(fields[DELIVERED] or 0) + 1
  none_due = score < PRIORITY_END
  local lease_end = nil -- see lib/leases/shared_leases
  if shared ~= '' then
    lease_end = tonumber(redis.call('ZSCORE', leases, shared) or 0)
  end
  if not id and #waits > 1 then
    --- @include "lib/wake/credits"
    --- @include "lib/wake/wake"
    local wait = next_ready_in(now_us, fields[LEASES_UNTIL])
    if wait ~= 0 then
      local ends, good
      ends = credit_end(lease_end, now)
      good = ends and keep_credit(waits, ends, limit, lease_end and 's' .. shared or lease, call, now) or 0
      if good == 0 then
        note_sleeper('waiting', now)
      end
      return { wait, good > 0 and 8 + 32 * good or 0, 0, delivery, tonumber(fields[ACCEPTED] or 0), '', {}, {} }
    end
  end
  if #page == 2 and score >= PRIORITY_MIN and score < PRIORITY_END and (not lease_end or lease_end - now >= lease / 2)
      and tonumber(fields[LEASES_UNTIL] or now + 1) > now
      and (takes % TURNS > 0 or redis.call('ZCOUNT', store, 0, BELOW_PRIORITY_MIN) == 0)
      and string.byte(fields[MAX_RETRIES], 1) ~= RECOUNTED then
    local record = redis.call('HGET', records, id)
    local failed = count_failed()
    if failed == 0 and record and #record >= FIXED and string.byte(record, 1) % HEADERS < EXPIRES then
      local expired = redis.call('ZCOUNT', prepare, '-inf', string.format('(%d', (seconds + 1) * 1000))
      local deadline = lease_end and SHARED + shared or math.ceil((now + lease) / 1000)
      local receipt = receipt_text(deadline, fields[MAX_RETRIES], delivery)
      redis.call('ZREM', store, id)
      add_single(prepare, receipt, id, takes)
      redis.call('HSET', slot, 'delivered', delivery, 'takes', takes, session,
        string.format('%s:%s:%d:%d:', number, seconds, deadline, delivery) .. id)
      if fields[GROUPED] then
        --- @include "lib/groups/group_entries"
        note_taken(score)
      end
      local wait = 0
      if limit > 1 then
        --- @include "lib/wake/wake"
        wait = next_ready_in(now_us, fields[LEASES_UNTIL])
      end
      return { wait, expired > 0 and 1 or 0, deadline, delivery, tonumber(fields[ACCEPTED] or 0), '', { id }, { record } }
    end
  end
end

--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/replay"

-- The reply to a call that was answered before: the deliveries of that answer, without those that the caller no longer holds.
-- `bits`: for the reply, what the call has done to a credit.
--- @inline
local function first_reply(answer, accepted, bits)
  --- @include "lib/records/large_bodies"
  local deadline, first, leased = string.match(answer, '^(%d+):(%d+):(.*)$')
  deadline, first = tonumber(deadline), tonumber(first)
  local any_large, marks, ids, taken = false, {}, {}, {}
  for i = 1, #leased / MEMBER do
    local id = string.sub(leased, (i - 1) * MEMBER + 1, i * MEMBER)
    local score = tonumber(redis.call('ZSCORE', prepare, id) or -1)
    local record = redis.call('HGET', records, id) or ''
    local left = math.floor(score % 1000)
    if #record < FIXED then
      record = ''
    end
    if score ~= deadline * 1000 + left + (first + i - 1) % DELIVERY_CYCLE / DELIVERY_CYCLE then
      id, record, left = '', '', 0
    end
    marks[i], ids[i], taken[i] = string.char(left), id, record
    any_large = any_large or is_large(record)
  end
  return { 0, bits + (any_large and 4 or 0), deadline, first, accepted, table.concat(marks), ids, taken }
end

-- Us until the slot next has work, for a take that found nothing; and 8 where its credit stands now, with 32 times the hand-overs
-- for which it is good. Note that the caller may sleep until then, and keep or renew its credit. `more`: there is work, whatever
-- the queues say.
--- @inline
local function end_empty(leases_until, now, now_us, hold, gate, more, waits, ends, limit, lease, call)
  --- @include "lib/wake/wake"
  --- @include "lib/writes"
  local bits = 0
  local wait, field = next_ready_in(now_us, leases_until, hold, gate)
  wait = more and 0 or wait
  if #waits > 1 and field == 'waiting' and not hold and wait ~= 0 then
    --- @include "lib/wake/credits"
    local good
    if string.byte(waits, 1) == RENEWS then
      local _, _, channel = read_offer(waits)
      local listeners
      listeners = count_listeners(channel)
      good = renew_credit(redis.call('HGET', slot, 'credits') or '', channel, listeners, ends, now)
    else
      good = keep_credit(waits, ends, limit, lease, call, now)
    end
    bits = good > 0 and 8 + 32 * good or 0
  end
  if waits ~= '0' and field and wait ~= 0 and is_to_note(redis.call('HGET', slot, field), now) then
    note_sleeper(field, now)
  end
  if waits ~= '0' and gate and gate.sends_wake and is_to_note(redis.call('HGET', slot, 'waiting'), now) then
    note_sleeper('waiting', now)
  end
  return wait, bits
end

-- The retries remaining of each message, as a byte. `retries_left`: nil, or those of messages that have failed.
--- @inline
local function marks_of(n, retries_left, max_retries)
  local marks = {}
  for i = 1, n do
    marks[i] = string.char(retries_left and retries_left[i] or max_retries)
  end
  return table.concat(marks)
end

if not now then
  now, now_us = clock(ARGV[1])
end
limit = whole_number(ARGV[3], 1, MOST, 'limit')
lease = whole_number(ARGV[4], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local again, bits = ARGV[9] == '1', 0
if #waits > 1 then
  --- @include "lib/wake/credits"
  read_offer(waits)
end
session, number = session_of(call)
local before = answer_in(known, number)
if again and #waits > 1 then -- an earlier copy may have left the credit, and its caller does not know
  --- @include "lib/wake/credits"
  local _, _, channel = read_offer(waits)
  bits, waits = 16 + 32 * remove_credit(channel), '1'
end
local accepted = tonumber(fields[ACCEPTED] or 0)
if before then
  return first_reply(before, accepted, bits)
end

local lease_number, lease_end, credit_lease = nil, 0, lease
if shared ~= '' then
  lease_number, lease_end = whole_number(shared, 0, SHARED_MOST, 'shared'), tonumber(redis.call('ZSCORE', leases, shared) or 0)
  credit_lease = 's' .. shared
end
local credit_ends
if #waits > 1 then
  --- @include "lib/wake/credits"
  credit_ends = credit_end(lease_number and lease_end, now)
  waits = credit_ends and waits or '1'
end
if fields[CREATED] ~= created then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
-- A deadline is a whole second, a receipt just above it. One lease may stand for many deliveries.
local expired = redis.call('ZCOUNT', prepare, '-inf', string.format('(%.0f', now - now % 1000 + 1000))
local shared_expired = fields[LEASES_UNTIL] and tonumber(fields[LEASES_UNTIL]) <= now
bits = bits + (expired > 0 and 1 or 0) + (shared_expired and 2 or 0)
local max_retries, first = tonumber(fields[MAX_RETRIES]), tonumber(fields[DELIVERED] or 0) + 1

--- @include "lib/take/take_messages"
local n, gate, hold, more, ids, taken, retries_left, any_large =
  take_messages(fields, takes, limit, ordered, now, none_due)
if n == 0 then
  local wait, credit = end_empty(fields[LEASES_UNTIL], now, now_us, hold, gate, more, waits, credit_ends, limit, credit_lease, call)
  if again then
    -- A poll that finds nothing writes nothing; but an earlier copy of this call may still be in the network.
    --- @include "lib/writes"
    allow_oom(store)
    remember(call, now, '0:0:')
  end
  return { wait, bits + credit, 0, first, accepted, '', {}, {} }
end
local deadline, until_ms = math.ceil((now + lease) / 1000), tonumber(fields[LEASES_UNTIL] or nil)
if lease_number then
  --- @include "lib/leases/shared_leases"
  lease_number, lease_end = lease_for_take(lease_number, lease_end, lease, now, until_ms)
  deadline, until_ms = SHARED + lease_number, math.min(until_ms or lease_end, lease_end)
end
if first > BY_CLOCK then
  first = number_by_clock(first, now_us)
end
local receipts = receipts_of(ids, n, deadline, first, max_retries, retries_left)
add_members(prepare, receipts, n)
redis.call('HSET', slot, 'delivered', first + n - 1, 'takes', takes, session,
  kept_answer(number, now, string.format('%d:%.0f:', deadline, first) .. table.concat(ids, '', 1, n)))
if not known then
  sweep_sessions(now, SWEPT)
end
if string.byte(waits, 1) == RENEWS then
  --- @include "lib/wake/credits"
  local _, _, channel = read_offer(waits)
  bits = bits + 32 * remove_credit(channel)
end
local wait, marks = 0, ''
if ordered then
  wait = (lease_number and lease_end * 1000 or deadline * SECOND_US) - now_us
elseif gate or not more then
  --- @include "lib/wake/wake"
  wait = next_ready_in(now_us, until_ms, nil, gate)
end
if retries_left or string.byte(fields[MAX_RETRIES], 1) == RECOUNTED then
  marks = marks_of(n, retries_left, max_retries)
end
return { wait, bits + (any_large and 4 or 0), deadline, first, accepted, marks, ids, taken }
