--[[
Short form of prepare: take the only waiting message, or leave a credit if no message waits. Most
takes that do not find a batch are like this. The short form reads only what such a take needs. It
creates functions only if nothing waits, or for a limit above 1; and no table but the reply. If a
guard fails, prepare.lua continues with the long form, which does the same for every take.

Reads: call call_number created fields last_call lease limit now now_us session shared take_number
  waits
Writes: none_due now now_us
]]
--- @include "lib/add"
--- @include "lib/bounds"
--- @include "lib/split_call"
--- @include "lib/take/delivery_answer"
--- @include "lib/take/delivery_numbers"
--- @include "lib/settle/count_failed"
--- @include "lib/leases/receipt"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
--- @include "lib/session"
--- @include "lib/slot_fields"
--- @include "lib/read_time"
--- @include "lib/take/take_order"
local ARGS = 8 -- number of arguments of a call that is not repeated
repeat
  if not last_call or #ARGV ~= ARGS or string.byte(call, 1) ~= SESSION_SIGN then
    break -- a new session removes unused sessions; a repeated call gets its first answer
  end
  if fields[CREATED] ~= created then
    break -- the topic was deleted or created again: the long form reports an error
  end
  if limit < 1 or limit > MOST then
    break -- the long form names the wrong argument
  end
  if lease < LEASE_LEAST_MS or lease > LEASE_MOST_MS or lease % 1 > 0 then
    break -- the long form names the wrong argument
  end
  local is_next = is_next_call(last_call, call_number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  if limit > 1 and waits == '0' then
    break -- a caller with a limit above 1 that does not sleep usually finds several messages
  end
  if string.byte(waits, 1) == RENEWS then
    break -- the call renews or removes a credit
  end
  if ARGV[6] ~= '0' or fields[ORDERED] then
    break -- the take or the slot is in order
  end
  if fields[AUDITED] or fields[PAUSED] or fields[LIMIT] then
    break -- the slot is audited, paused or limited
  end
  if fields[WAITED] then
    break -- the reply must say whether the message has waited for an event
  end
  if tonumber(fields[ORDER] or 0) >= ORDER_END or tonumber(fields[FRONT] or 0) <= -ORDER_END then
    break -- scores may be equal, so ids decide
  end
  local delivery = tonumber(fields[DELIVERED] or 0) + 1 -- number of the next delivery
  if delivery > BY_CLOCK then
    break -- delivery numbers are times
  end
  local seconds
  now, now_us, seconds = read_time(ARGV[1])
  local page = redis.call('ZREVRANGEBYSCORE', store, string.format('(%d', now + 1), 0,
    'WITHSCORES', 'LIMIT', 0, limit > 1 and 2 or 1)
  local id, score = page[1], tonumber(page[2] or 0)
  none_due = score < PRIORITY_END
  local lease_end = nil -- of the shared lease, if the call names one
  if shared ~= '' then
    lease_end = tonumber(redis.call('ZSCORE', leases, shared) or 0)
  end

  if not id and #waits == 1 then
    break -- no message waits, and the caller offers no credit
  end
  local ready_in = nil -- next_ready_in, if it may be needed
  if not id or limit > 1 then
    --- @include "lib/wake/next_ready_in"
    ready_in = next_ready_in
  end
  if not id then
    --- @include "lib/wake/credits"
    --- @include "lib/wake/wake"
    local way = parse_offer(waits)
    if not way then
      break -- the long form names the wrong argument
    end
    local wait_us = ready_in(now_us, fields[LEASES_UNTIL])
    if wait_us == 0 then
      break -- a lease has expired
    end
    local credit_ends = credit_end(lease_end, now)
    local credit_lease = lease_end and 's' .. shared or lease
    local good = credit_ends
      and keep_credit(waits, credit_ends, limit, credit_lease, call, now) or 0
    if good == 0 then
      note_sleeper('waiting', now)
    end
    local bits = good > 0 and CREDIT_KEPT + HAND_OVER * good or 0
    return { wait_us, bits, 0, delivery, tonumber(fields[ACCEPTED] or 0), '', {}, {} }
  end

  if #page > 2 or score < PRIORITY_MIN or score >= PRIORITY_END then
    break -- several messages wait, or the message is a retry or due
  end
  if lease_end and lease_end - now < lease / 2 then
    break -- the shared lease is to be opened or renewed
  end
  if tonumber(fields[LEASES_UNTIL] or now + 1) <= now then
    break -- the reply must say that a lease has expired
  end
  if take_number % TURNS == 0 and redis.call('ZCOUNT', store, 0, BELOW_PRIORITY_MIN) > 0 then
    break -- a retry goes first
  end
  local record = redis.call('HGET', records, id)
  local failed = count_failed()
  if failed > 0 or string.byte(fields[MAX_RETRIES], 1) == RETRIES_CHANGED then
    break -- the reply must say how many retries remain
  end
  if not record or #record < FIXED then
    break -- the record is missing or unreadable
  end
  if string.byte(record, 1) % HEADERS >= EXPIRES then
    break -- the message may have expired, has a merge key or has a large body
  end

  local expired = count_expired(now)
  local deadline = lease_end and SHARED_DEADLINE + shared or math.ceil((now + lease) / 1000)
  local receipt = receipt_text(deadline, fields[MAX_RETRIES], delivery)
  local deliveries = delivery_answer(deadline, delivery, id)
  local answer = session_answer(call_number, seconds, deliveries)
  redis.call('ZREM', store, id)
  add_single(prepare, receipt, id, take_number)
  redis.call('HSET', slot, 'delivered', delivery, 'takes', take_number, session, answer)
  if fields[GROUPS] then
    --- @include "lib/groups/group_entries"
    note_taken(score)
  end
  local wait_us, bits = 0, expired > 0 and LEASES_EXPIRED or 0
  if limit > 1 then
    wait_us = ready_in(now_us, fields[LEASES_UNTIL])
  end
  return { wait_us, bits, deadline, delivery, tonumber(fields[ACCEPTED] or 0), '', { id },
    { record } }
until true
