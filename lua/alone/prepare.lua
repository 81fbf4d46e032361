--[[
Short form of prepare: take the only message that waits, or leave a credit if none waits. Most takes
that do not find a batch are like this. The short form creates no function, and no table but the
reply, and reads nothing that such a take does not need. If a guard fails, the long form in
prepare.lua does the work.

Reads: call created fields known lease limit now now_us number session shared takes waits
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
--- @include "lib/take/turns"
local ARGS = 8 -- of a call that is not repeated
repeat
  if not known or #ARGV ~= ARGS or string.byte(call, 1) ~= AT then
    break -- a new session sweeps others; a repeated call gets its first answer
  end
  if limit < 1 or limit > MOST or fields[CREATED] ~= created then
    break -- the long form names the argument that is wrong
  end
  if lease < LEASE_LEAST_MS or lease > LEASE_MOST_MS or lease % 1 > 0 then
    break
  end
  local is_next = is_next_call(known, number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  if limit > 1 and waits == '0' or string.byte(waits, 1) == RENEWS then
    break -- a caller that does not wait for many probably finds a batch
  end
  if ARGV[6] ~= '0' or fields[ORDERED] or fields[AUDITED] or fields[PAUSED] or fields[LIMIT] then
    break
  end
  if tonumber(fields[ORDER] or 0) >= ORDER_END or tonumber(fields[FRONT] or 0) <= -ORDER_END then
    break -- scores may be equal
  end
  local delivery = tonumber(fields[DELIVERED] or 0) + 1
  if delivery > BY_CLOCK then
    break -- the number of the delivery comes from the clock
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
    break -- the caller offers no credit
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
      break -- the long form names the argument that is wrong
    end
    local wait = ready_in(now_us, fields[LEASES_UNTIL])
    if wait == 0 then
      break -- a lease has expired
    end
    local ends, good
    ends = credit_end(lease_end, now)
    local credit_lease = lease_end and 's' .. shared or lease
    good = ends and keep_credit(waits, ends, limit, credit_lease, call, now) or 0
    if good == 0 then
      note_sleeper('waiting', now)
    end
    local bits = good > 0 and 8 + 32 * good or 0
    return { wait, bits, 0, delivery, tonumber(fields[ACCEPTED] or 0), '', {}, {} }
  end

  if #page > 2 or score < PRIORITY_MIN or score >= PRIORITY_END then
    break -- several messages, a retry, or a due message
  end
  if lease_end and lease_end - now < lease / 2 then
    break -- the shared lease is to be opened or renewed
  end
  if tonumber(fields[LEASES_UNTIL] or now + 1) <= now then
    break -- a lease has expired, which the reply says
  end
  if takes % TURNS == 0 and redis.call('ZCOUNT', store, 0, BELOW_PRIORITY_MIN) > 0 then
    break -- a retry goes first
  end
  local record, failed = redis.call('HGET', records, id), nil
  failed = count_failed()
  if failed > 0 or string.byte(fields[MAX_RETRIES], 1) == RECOUNTED then
    break -- the reply says how many retries remain
  end
  if not record or #record < FIXED or string.byte(record, 1) % HEADERS >= EXPIRES then
    break -- it is unreadable, may have expired, merges, or has a large body
  end

  local expired = count_expired(now)
  local deadline = lease_end and SHARED + shared or math.ceil((now + lease) / 1000)
  local receipt = receipt_text(deadline, fields[MAX_RETRIES], delivery)
  local deliveries = delivery_answer(deadline, delivery, id)
  local answer = session_answer(number, seconds, deliveries)
  redis.call('ZREM', store, id)
  add_single(prepare, receipt, id, takes)
  redis.call('HSET', slot, 'delivered', delivery, 'takes', takes, session, answer)
  if fields[GROUPED] then
    --- @include "lib/groups/group_entries"
    note_taken(score)
  end
  local wait, bits = 0, expired > 0 and 1 or 0
  if limit > 1 then
    wait = ready_in(now_us, fields[LEASES_UNTIL])
  end
  return { wait, bits, deadline, delivery, tonumber(fields[ACCEPTED] or 0), '', { id }, { record } }
until true
