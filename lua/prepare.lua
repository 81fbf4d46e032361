--[[
prepare: lease messages. Moves the messages that go next from the StoreQueue to the PrepareQueue and
returns them.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   limit                1 to 1000
ARGV[4]   lease_ms             1000 to 43 200 000; the deadline is rounded up to whole seconds
ARGV[5]   waits                what to do if the call finds nothing (lib/wake/credits):
                               0  nothing
                               1  note that the caller sleeps and wants to be woken
                               +<number> <channel> and calls  keep a credit for `limit` and
                                  `lease_ms`; publish the number on the channel first
                               *<number> <channel> and calls  the same, but the caller has heard a
                                  number on the channel, so none is published
                               =<channel>  renew the caller's credit if it ends soon; if the call
                                  finds messages, remove the credit
                               A repeated call removes the credit and keeps none
ARGV[6]   ordered              1: in order. Nothing is taken while the slot has a delivery in
                               flight. A message that has failed is taken alone, and a take stops
                               before it; 0: not in order, see below
ARGV[7]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[8]   shared         ''    each delivery has its own deadline; or the number of the shared lease
                               of the deliveries. If it is gone, or for 0, a lease is opened; if
                               less than half of lease_ms is left of it, it is renewed
ARGV[9]   again                1 if an earlier copy of this call had no reply; else left out
Returns   {us until the slot next has work (0 now, -1 never),
          bits: 1 leases expired and need a rollback, 2 so does a query or a shared lease, 4 records
          refer to large bodies, 8 the credit is kept, 16 this call repeats one with a credit,
          32 times the hand-overs for which the credit is still good, or was when this removed it,
          deadline s (3 000 000 000 + the number of a shared lease), number of the first delivery,
          acceptance number of the newest message,
          retries remaining of each as one byte ('' when none has failed), members, records}
          A member of '' replaces a delivery of the first answer that the caller no longer holds.
          A record of '' is missing or shorter than 8 bytes: the caller rejects its message.
Cost      O(k log L), k = limit, plus at most 1000 due messages that join their priority; at most
          4 MiB. With a limit for each key, up to 1000 waiting records and 1000 in flight are read
          first, at most 4 MiB of each
Atomic    All messages are read and checked before they move; the first write frees memory, so a
          full Redis can still be drained. A call that is sent twice with one number returns the
          same deliveries. A repeated call that found nothing is remembered too, so that the
          earlier copy takes nothing if it comes late. Expired messages are not taken: they are
          dropped, or go to the DeadQueue.
          With a limit for each key, a take looks at 1000 waiting messages, or 4 MiB of them, and
          passes over messages of held keys; the messages behind these wait. If it finds no others,
          it writes a note (`held`) and takes nothing.
          A take in order sets the slot's `ordered`. While that is set, a take that is not in order
          waits for the deliveries in flight and for the hold; then it takes, and clears the field.
]]
--- @keys slot store prepare records dead failures merge audit bodies leases rates
--- @include "lib/split_call"
--- @include "lib/slot_fields"
local call, waits, ordered, created, shared = ARGV[2], ARGV[5], ARGV[6] == '1', ARGV[7], ARGV[8]
local limit, lease = tonumber(ARGV[3]) or 0, tonumber(ARGV[4]) or 0
local session, number = split_call(call)
local fields = read_take_fields(session)
local known, takes = fields[SESSION], tonumber(fields[TAKES] or 0) + 1
local now, now_us, none_due = nil, nil, false

--- @include "alone/prepare"

--- @include "lib/add"
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/take/delivery_answer"
--- @include "lib/take/delivery_numbers"
--- @include "lib/member"
--- @include "lib/leases/receipt"
--- @include "lib/records/record"
--- @include "lib/replay"
--- @include "lib/wake/next_ready_in"

if not now then
  now, now_us = clock(ARGV[1])
end
limit = whole_number(ARGV[3], 1, MOST, 'limit')
lease = whole_number(ARGV[4], LEASE_LEAST_MS, LEASE_MOST_MS, 'lease_ms')
local again, bits = ARGV[9] == '1', 0
local channel, credit_verbs -- of the credit that the caller offers or has
if #waits > 1 then
  --- @include "lib/wake/credit_functions"
  --- @include "lib/wake/credits"
  channel = offered_channel(waits)
  credit_verbs = credit_functions
end
session, number = session_of(call)
local before = answer_in(known, number)
if again and channel then -- an earlier copy may have left the credit, and its caller does not know
  local _, remove = credit_verbs()
  bits, waits = 16 + 32 * remove(channel), '1'
end
local accepted = tonumber(fields[ACCEPTED] or 0)

-- Return the reply to a call that was answered before, without deliveries that have ended since.
--- @inline
local function first_reply(answer)
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
    local has_body = is_large(record)
    any_large = any_large or has_body
  end
  bits = bits + (any_large and 4 or 0)
  return { 0, bits, deadline, first, accepted, table.concat(marks), ids, taken }
end

if before then
  return first_reply(before)
end

local lease_number, lease_end, credit_lease = nil, nil, lease -- the first two of a shared lease
if shared ~= '' then
  lease_number = whole_number(shared, 0, SHARED_MOST, 'shared')
  lease_end = tonumber(redis.call('ZSCORE', leases, shared) or 0)
  credit_lease = 's' .. shared
end
local credit_ends
if #waits > 1 then
  --- @include "lib/wake/credits"
  credit_ends = credit_end(lease_end, now)
  waits = credit_ends and waits or '1'
end
if fields[CREATED] ~= created then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
local leases_until = tonumber(fields[LEASES_UNTIL] or nil)
local expired = count_expired(now)
bits = bits + (expired > 0 and 1 or 0) + (leases_until and leases_until <= now and 2 or 0)
local max_retries, first = tonumber(fields[MAX_RETRIES]), tonumber(fields[DELIVERED] or 0) + 1

-- Keep the offered credit, or renew the one that the caller has; return the bits of the reply.
--- @inline
local function offer_credit()
  --- @include "lib/wake/credits"
  local good
  if string.byte(waits, 1) == RENEWS then
    local credits = redis.call('HGET', slot, 'credits') or ''
    local listeners = count_listeners(channel)
    local _, _, renew = credit_verbs()
    good = renew(credits, channel, listeners, credit_ends, now)
  else
    local keep = credit_verbs()
    good = keep(waits, credit_ends, limit, credit_lease, call, now)
  end
  local good_bits = good > 0 and 8 + 32 * good or 0
  return good_bits
end

-- Note that the caller may sleep, if it waits and nothing is to be taken now; return the reply.
--- @inline
local function empty_reply(batch)
  --- @include "lib/wake/wake"
  --- @include "lib/writes"
  local wait, field = next_ready_in(now_us, fields[LEASES_UNTIL], batch.hold, batch.gate)
  if batch.more then
    wait = 0
  end
  if #waits > 1 and field == 'waiting' and not batch.hold and wait ~= 0 then
    local good_bits = offer_credit()
    bits = bits + good_bits
  end
  if waits ~= '0' and field and wait ~= 0 and is_to_note(redis.call('HGET', slot, field), now) then
    note_sleeper(field, now)
  end
  local sends_wake = waits ~= '0' and batch.gate and batch.gate.sends_wake
  if sends_wake and is_to_note(redis.call('HGET', slot, 'waiting'), now) then
    note_sleeper('waiting', now)
  end
  if again then
    -- A poll that finds nothing writes nothing, but a copy of this call may still arrive.
    allow_oom(store)
    remember(call, now, '0:0:')
  end
  return { wait, bits, 0, first, accepted, '', {}, {} }
end

-- Return the retries remaining of each message of a batch, as bytes.
--- @inline
local function marks_of(batch)
  local marks, retries_left = {}, batch.retries_left
  for i = 1, batch.count do
    marks[i] = string.char(retries_left and retries_left[i] or max_retries)
  end
  return table.concat(marks)
end

--- @include "lib/take/take_messages"
local take = {
  fields = fields, number = takes, limit = limit, ordered = ordered, now = now, none_due = none_due,
}
local batch = take_messages(take)
local count, retries_left = batch.count, batch.retries_left
if count == 0 then
  return empty_reply(batch)
end
local deadline, until_ms = math.ceil((now + lease) / 1000), leases_until
if lease_number then
  --- @include "lib/leases/shared_leases"
  lease_number, lease_end = lease_for_take(lease_number, lease_end, lease, now, until_ms)
  deadline, until_ms = SHARED + lease_number, math.min(until_ms or lease_end, lease_end)
end
if first > BY_CLOCK then
  first = number_by_clock(first, now_us)
end
local receipts = receipts_of(batch.ids, count, deadline, first, max_retries, retries_left)
local deliveries = delivery_answer(deadline, first, table.concat(batch.ids))
local answer = kept_answer(number, now, deliveries)
add_members(prepare, receipts, count)
redis.call('HSET', slot, 'delivered', first + count - 1, 'takes', takes, session, answer)
if not known then
  sweep_sessions(now, SWEPT)
end
if string.byte(waits, 1) == RENEWS then
  local _, remove = credit_verbs()
  bits = bits + 32 * remove(channel)
end
local wait, marks = 0, ''
if ordered then
  wait = (lease_number and lease_end * 1000 or deadline * SECOND_US) - now_us
elseif batch.gate or not batch.more then
  wait = next_ready_in(now_us, until_ms, nil, batch.gate)
end
if retries_left or string.byte(fields[MAX_RETRIES], 1) == RECOUNTED then
  marks = marks_of(batch)
end
bits = bits + (batch.any_large and 4 or 0)
return { wait, bits, deadline, first, accepted, marks, batch.ids, batch.records }
