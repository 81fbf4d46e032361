--[[
prepare: lease messages. Moves the next messages from the StoreQueue to the PrepareQueue and returns
them.

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
                               A repeated call removes the credit and keeps no other
ARGV[6]   ordered              1: in order. The call takes nothing while the slot has a delivery in
                               flight. A message that has failed is taken alone, and a take stops
                               before it; 0: not in order, see below
ARGV[7]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[8]   shared         ''    each delivery has its own deadline; or the number of the shared lease
                               of the deliveries. If it is gone, or for 0, a lease is opened; if
                               less than half of lease_ms is left of it, it is renewed
ARGV[9]   is_repeated          1 if an earlier copy of this call had no reply; else left out
Returns   A list of
          1  us until the slot next has work: 0 now, -1 never
          2  bits (lib/take/reply_bits): 1 leases expired and need a rollback. 2 so does the lease
             of a query or a shared lease. 4 records refer to large bodies. 8 the credit is kept.
             16 this call repeats a call with a credit. 32 messages have waited for an event
             (event_read). 64 times the hand-overs for which the credit is still good, or was when
             this call removed it
          3  deadline s; or 3 000 000 000 + the number of a shared lease
          4  number of the first delivery
          5  acceptance number of the newest message
          6  retries remaining of each message as one byte; '' when none has failed
          7  members
          8  records
          A member of '' replaces a delivery of the first answer whose receipt is no longer valid.
          A record of '' is missing or shorter than 8 bytes: the caller rejects its message.
Cost      O(k log L), k = limit, plus at most 500 due messages that join their priority; at most
          4 MiB. Of due messages with a priority, or given back with a delay, a call takes at most
          500. With a limit for each key, up to 1000 waiting records and 1000 in flight are read
          first, at most 4 MiB of each
Atomic    All messages are read and checked before they move; the first write frees memory, so a
          full Redis can still be drained. A call that is sent twice with one number returns the
          same deliveries. If a repeated call finds nothing, this answer is remembered too. If
          the original call arrives later, it takes nothing. Expired messages are not taken: they
          are dropped, or go to the DeadQueue.
          With a limit for each key, a take looks at 1000 waiting messages, or 4 MiB of them, and
          passes over messages whose key is at its limit; the messages behind these wait. If it
          finds no others, it writes a note (`held`) and takes nothing.
          A take in order sets the slot's `ordered`. While that is set, a take that is not in order
          takes nothing until no delivery is in flight and the slot no longer waits. Then it takes,
          and clears the field.
]]
--- @keys slot store prepare records dead failures merge audit bodies leases rates pending targets results keeping
--- @include "lib/split_call"
--- @include "lib/slot_fields"
--- @include "lib/take/reply_bits"
local call, waits, ordered, created, shared = ARGV[2], ARGV[5], ARGV[6] == '1', ARGV[7], ARGV[8]
local limit, lease = tonumber(ARGV[3]) or 0, tonumber(ARGV[4]) or 0
local session, call_number = split_call(call)
local fields = read_take_fields(session)
local last_call = fields[SESSION] -- number, time and answer; false in a new session
local take_number = tonumber(fields[TAKES] or 0) + 1
local now, now_us, none_due = nil, nil, false -- none_due: the short form found no due message

--- @include "alone/prepare"

--- @include "lib/add"
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/take/delivery_answer"
--- @include "lib/take/delivery_numbers"
--- @include "lib/take/member_runs"
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
local is_repeated, bits = ARGV[9] == '1', 0
local may_sleep = waits ~= '0'
local offer = #waits > 1 and waits or nil -- of a credit, or to renew the caller's credit
local channel, credit_verbs = nil, nil -- of the offer
if offer then
  -- Most calls need no credit, so functions of credits are created only by calling credit_verbs.
  --- @include "lib/wake/credit_functions"
  --- @include "lib/wake/credits"
  channel = offered_channel(offer)
  credit_verbs = credit_functions
end
session, call_number = session_of(call)
local earlier_answer = answer_in(last_call, call_number)
if is_repeated and offer then -- the caller does not know whether an earlier copy left the credit
  local _, remove = credit_verbs()
  bits, offer = CREDIT_REPEATED + HAND_OVER * remove(channel), nil
end
local accepted = tonumber(fields[ACCEPTED] or 0)

-- Return the reply to a repeated call. Deliveries that have ended since the first answer are empty.
--- @inline
local function repeated_reply(answer)
  --- @include "lib/records/large_bodies"
  local deadline, first_delivery, form, members = string.match(answer, '^(%d+):(%d+)([:=])(.*)$')
  deadline, first_delivery = tonumber(deadline), tonumber(first_delivery)
  if form == AS_RUNS then
    members = members_of_runs(members)
  end
  local any_large, retries, ids, texts = false, {}, {}, {} -- texts: of the records
  for i = 1, #members / MEMBER do
    local id = string.sub(members, (i - 1) * MEMBER + 1, i * MEMBER)
    local score = tonumber(redis.call('ZSCORE', prepare, id) or -1)
    local record = redis.call('HGET', records, id) or ''
    local retries_left = math.floor(score % 1000)
    if #record < FIXED then
      record = ''
    end
    local fraction = (first_delivery + i - 1) % DELIVERY_CYCLE / DELIVERY_CYCLE
    if score ~= deadline * 1000 + retries_left + fraction then -- not the receipt of the answer
      id, record, retries_left = '', '', 0
    end
    retries[i], ids[i], texts[i] = string.char(retries_left), id, record
    local has_body = is_large(record)
    any_large = any_large or has_body
  end
  bits = bits + (any_large and LARGE_BODIES or 0)
  if fields[WAITED] and #ids > 0 then
    --- @include "lib/events/any_waited"
    local any = any_waited(ids)
    bits = bits + (any and ANY_WAITED or 0)
  end
  return { 0, bits, deadline, first_delivery, accepted, table.concat(retries), ids, texts }
end

if earlier_answer then
  return repeated_reply(earlier_answer)
end

local lease_number, lease_end = nil, nil -- of the shared lease
local credit_lease = lease -- lease of deliveries that are handed over
if shared ~= '' then
  lease_number = whole_number(shared, 0, SHARED_MOST, 'shared')
  lease_end = tonumber(redis.call('ZSCORE', leases, shared) or 0)
  credit_lease = 's' .. shared
end
local credit_ends = nil
if offer then
  --- @include "lib/wake/credits"
  credit_ends = credit_end(lease_end, now)
  offer = credit_ends and offer -- nil: the credit would end too soon
end
if fields[CREATED] ~= created then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
local leases_until = tonumber(fields[LEASES_UNTIL])
local expired = count_expired(now)
bits = bits + (expired > 0 and LEASES_EXPIRED or 0)
  + (leases_until and leases_until <= now and SHARED_EXPIRED or 0)
local max_retries = tonumber(fields[MAX_RETRIES])
local first_delivery = tonumber(fields[DELIVERED] or 0) + 1

-- Keep the offered credit, or renew the caller's credit. Return the bits of the reply.
--- @inline
local function offer_credit()
  --- @include "lib/wake/credits"
  local good
  if string.byte(offer, 1) == RENEWS then
    local credits = redis.call('HGET', slot, 'credits') or ''
    local listeners = count_listeners(channel)
    local _, _, renew = credit_verbs()
    good = renew(credits, channel, listeners, credit_ends, now)
  else
    local keep = credit_verbs()
    good = keep(offer, credit_ends, limit, credit_lease, call, now)
  end
  local good_bits = good > 0 and CREDIT_KEPT + HAND_OVER * good or 0
  return good_bits
end

-- Return the reply of a call that takes nothing. First note that the caller may sleep.
--- @inline
local function empty_reply(take, batch)
  --- @include "lib/wake/wake"
  --- @include "lib/writes"
  local wait_us, field = next_ready_in(now_us, fields[LEASES_UNTIL], take.ordered_until, batch.gate)
  if batch.more then
    wait_us = 0
  end
  if offer and field == 'waiting' and not take.ordered_until and wait_us ~= 0 then
    local good_bits = offer_credit()
    bits = bits + good_bits
  end
  if may_sleep and field and wait_us ~= 0 and is_to_note(redis.call('HGET', slot, field), now) then
    note_sleeper(field, now)
  end
  local sends_wake = may_sleep and batch.gate and batch.gate.sends_wake
  if sends_wake and is_to_note(redis.call('HGET', slot, 'waiting'), now) then
    note_sleeper('waiting', now)
  end
  if is_repeated then
    -- Usually an empty take writes nothing. But a late copy of this call must not take messages.
    allow_oom(store)
    remember(call, now, '0:0:')
  end
  return { wait_us, bits, 0, first_delivery, accepted, '', {}, {} }
end

-- Return the retries remaining of each message of a batch, as bytes.
--- @inline
local function retries_text(batch)
  local retries, retries_left = {}, batch.retries_left
  for i = 1, batch.count do
    retries[i] = string.char(retries_left and retries_left[i] or max_retries)
  end
  return table.concat(retries)
end

--- @include "lib/take/take_messages"
local take = {
  fields = fields, number = take_number, limit = limit, ordered = ordered, now = now,
  none_due = none_due,
}
local batch = take_messages(take)
local count, retries_left = batch.count, batch.retries_left
if count == 0 then
  return empty_reply(take, batch)
end
local deadline, first_lease_end = math.ceil((now + lease) / 1000), leases_until
if lease_number then
  --- @include "lib/leases/shared_leases"
  lease_number, lease_end = lease_for_take(lease_number, lease_end, lease, now, first_lease_end)
  deadline = SHARED_DEADLINE + lease_number
  first_lease_end = math.min(first_lease_end or lease_end, lease_end)
end
if first_delivery > BY_CLOCK then
  first_delivery = number_by_clock(first_delivery, now_us)
end
local receipts = receipts_of(batch.ids, count, deadline, first_delivery, max_retries, retries_left)
local runs = member_runs(batch.ids, count)
local deliveries = delivery_answer(deadline, first_delivery, runs or table.concat(batch.ids),
  runs and AS_RUNS)
local answer = session_value(call_number, now, deliveries)
add_members(prepare, receipts, count)
redis.call('HSET', slot, 'delivered', first_delivery + count - 1, 'takes', take_number,
  session, answer)
if not last_call then
  sweep_sessions(now, SWEPT)
end
if offer and string.byte(offer, 1) == RENEWS then -- the caller does not sleep
  local _, remove = credit_verbs()
  bits = bits + HAND_OVER * remove(channel)
end
local wait_us, retries = 0, ''
if ordered then -- the slot has work when the lease of this batch ends
  wait_us = (lease_number and lease_end * 1000 or deadline * SECOND_US) - now_us
elseif batch.gate or not batch.more then
  wait_us = next_ready_in(now_us, first_lease_end, nil, batch.gate)
end
if retries_left or string.byte(fields[MAX_RETRIES], 1) == RETRIES_CHANGED then
  retries = retries_text(batch)
end
bits = bits + (batch.any_large and LARGE_BODIES or 0)
if fields[WAITED] then
  --- @include "lib/events/any_waited"
  local any = any_waited(batch.ids)
  bits = bits + (any and ANY_WAITED or 0)
end
return { wait_us, bits, deadline, first_delivery, accepted, retries, batch.ids, batch.records }
