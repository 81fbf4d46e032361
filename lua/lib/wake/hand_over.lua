--[[
The hand-over: a script that makes messages available moves them to the PrepareQueue for consumers that have left credits
(lib/wake/credits), and publishes delivery and records on their channels. So a message that comes alone needs one script
and wakes one consumer.

It takes what a prepare would take now, or nothing: where that is not plain, consumers are woken, and take it themselves.
What is plain: a priority or a retry that has not expired, without a merge key or large body, in a slot that is not in order, not
paused and without a limit, and at most 16 KiB of records for each credit, or one larger record. A due message joins its priority
first, and one take in five begins with retries; both are left to prepare. One script hands over so much that it takes about 3 ms,
and wakes those whose credits are left.

What is published is msgpack: the number of the hand-over, the slot's index, deadline s, number of the first delivery,
acceptance number of the newest message, retries remaining of each as one byte ('' when none has failed), members, records.
]]
--- @needs slot store prepare records failures
--- @include "lib/wake/credits"
--- @include "lib/take/delivery_numbers"
--- @include "lib/leases/receipt"
--- @include "lib/records/record_bytes"
--- @include "lib/take/turns"
--- @include "lib/wake/wake"

-- What hand-overs of one script may cost together, in bytes of records. A message costs as much as HAND_OVER_MESSAGE more, and a
-- hand-over no less than HAND_OVER_LEAST.
local HAND_OVERS_COST, HAND_OVER_LEAST, HAND_OVER_MESSAGE = 262144, 8192, 400

-- Whether a key holds this type, or nothing.
local function is_kind(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- The first messages of a page (members and scores in turn) that may be handed over together: (their members, their records,
-- the retries remaining of each as a byte, bytes of the records, whether one has failed before).
--- @inline
local function plain_messages(page, max_retries, failed, now)
  local ids, taken, marks, bytes, any_failed = {}, {}, {}, 0, false
  for i = 1, #page, 2 do
    local record = redis.call('HGET', records, page[i])
    local flags = string.byte(record or '', 1) or MERGES
    local expiry = flags % 4 >= EXPIRES and (flags % 2 == 1 and 15 or 9) -- where it stands
    if flags % HEADERS >= MERGES or #record < (expiry or 3) + 5 or expiry and read48(record, expiry) <= now
        or bytes + #record > (i == 1 and HAND_OVER_LARGEST or HAND_OVER_BYTES) then
      break
    end
    local n, score, left = #ids + 1, tonumber(page[i + 1]), max_retries
    if score < PRIORITY_MIN then
      left = math.max(0, math.min(max_retries, math.floor(score) - 1))
    elseif failed > 0 then
      --- @include "lib/settle/failures"
      local entry = redis.call('HGET', failures, page[i])
      left = entry and retries_in(entry, max_retries) or left
    end
    any_failed = any_failed or left < max_retries
    ids[n], taken[n], marks[n], bytes = page[i], record, string.char(left), bytes + #record
  end
  return ids, taken, marks, bytes, any_failed
end

-- Move messages to the PrepareQueue; `delivered`: the number of the last delivery before theirs.
--- @inline
local function lease_messages(ids, marks, deadline, delivered)
  local receipts = {}
  for n = 1, #ids do
    local receipt = receipt_text(deadline, string.byte(marks[n]), delivered + n)
    receipts[2 * n - 1], receipts[2 * n] = receipt, ids[n]
  end
  redis.call('ZREM', store, unpack(ids))
  redis.call('ZADD', prepare, unpack(receipts))
end

-- Hand over what waits to the consumers whose credits are given, one after the other; return whether something may be left.
-- `accepted`: the acceptance number of the newest message.
--- @inline
local function hand_over_waiting(index, now, credits, max_retries, delivered, takes, accepted)
  local is_recounted = string.byte(max_retries, 1) == RECOUNTED
  max_retries = tonumber(max_retries)
  local past, failed, moved, cost = string.format('(%.0f', now + 1), redis.call('HLEN', failures), 0, 0
  local left_over, steps = true, 0
  if delivered >= BY_CLOCK then
    steps = steps_to(delivered, now * 1000)
    delivered = delivered + steps
  end
  for _ = 1, CREDITS_MAX do
    if cost >= HAND_OVERS_COST then
      break
    end
    local _, last, channel, number, till, limit, lease, session, call_number, calls = string.find(credits, FIRST_CREDIT)
    if not last then
      credits = ''
      break
    end
    local others = string.sub(credits, last + 1)
    if tonumber(till) > now then
      local page = redis.call('ZREVRANGEBYSCORE', store, past, 0, 'WITHSCORES', 'LIMIT', 0, math.min(limit, HAND_OVER_MOST))
      left_over = #page > 0
      if not left_over or tonumber(page[2]) >= PRIORITY_END
          or (takes + 1) % TURNS == 0 and redis.call('ZCOUNT', store, 0, BELOW_PRIORITY_MIN) > 0 then
        break
      end
      local ids, taken, marks, bytes, any_failed = plain_messages(page, max_retries, failed, now)
      if #ids == 0 then
        break
      end
      local deadline, sent
      deadline = deadline_of(lease, now)
      sent = publish_deliveries(channel, { number, index, deadline, delivered + 1, accepted,
        (any_failed or is_recounted) and table.concat(marks) or '', ids, taken })
      if sent then
        lease_messages(ids, marks, deadline, delivered)
        redis.call('HSET', slot, session, string.format('%s:%010d:%d:%.0f:', call_number, now / 1000, deadline, delivered + 1)
          .. table.concat(ids))
        delivered, takes, moved = delivered + #ids, takes + 1, moved + #ids
        cost = cost + math.max(HAND_OVER_LEAST, bytes + HAND_OVER_MESSAGE * #ids)
        others = credits_after(others, channel, number, till, limit, lease, calls)
      end
    end
    credits = others
  end
  redis.call('HSET', slot, 'credits', credits)
  if moved > 0 then
    redis.call('HSET', slot, 'delivered', delivered, 'takes', takes)
    if steps > 0 then
      redis.call('HINCRBY', slot, 'skipped', string.format('%.0f', steps))
    end
  end
  return left_over and (moved == 0 or redis.call('ZCOUNT', store, '-inf', past) > 0)
end

-- Hand over what waits, then wake the consumers that sleep, if something is left. Everything is stored by then, so a key of a
-- wrong type is no error here. A hand-over that no connection was counted for has moved nothing; its credit goes.
local function serve_sleepers(channel, index, now)
  local credits, max_retries, delivered, takes, accepted, ordered, order, front, paused, limit, grouped = unpack(redis.call('HMGET',
    slot,
    'credits', 'max_retries', 'delivered', 'takes', 'accepted', 'ordered', 'order', 'front', 'paused', 'limit', 'groups'))
  local left_over = true
  if (credits or '') ~= '' and not ordered and not paused and not limit and not grouped and tonumber(order or 0) < ORDER_END
      and tonumber(front or 0) > -ORDER_END and is_kind(prepare, 'zset') and is_kind(failures, 'hash') then
    left_over = hand_over_waiting(index, now, credits, max_retries, tonumber(delivered or 0), tonumber(takes or 0),
      tonumber(accepted or 0))
  end
  if left_over then
    wake(channel, index)
  end
end
