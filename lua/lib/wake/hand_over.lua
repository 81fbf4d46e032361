--[[
The hand-over. A script that makes messages available serves consumers that have left credits
(lib/wake/credits): it moves messages to the PrepareQueue, and publishes deliveries with their
records on the channels of these consumers. So a single message needs one script and wakes one
consumer.

A hand-over takes the messages that a prepare would take now, or none. If messages are left,
consumers are woken, and take them with prepare.
- It takes only plain messages: a priority or a retry that has not expired, without a merge key or
  large body.
- The slot is not in order and not paused, and has no groups, no limit and no waits for events.
- Each credit gets at most 16 KiB of records, or one larger record.
- Due messages are left to prepare, because they first join their priority. So is one take in five,
  if retries wait, because it begins with retries.
- One script hands over messages for about 3 ms. Then it wakes the consumers whose credits are left.

The published text is msgpack of: number of the hand-over, index of the slot, deadline s, number of
the first delivery, acceptance number of the newest message, retries remaining of each message as
one byte ('' when none has failed), members, records.
]]
--- @needs slot store prepare records failures
--- @include "lib/wake/credits"
--- @include "lib/take/delivery_answer"
--- @include "lib/take/delivery_numbers"
--- @include "lib/leases/receipt"
--- @include "lib/records/record_bytes"
--- @include "lib/session"
--- @include "lib/take/take_order"
--- @include "lib/scores/score_ranges"
--- @include "lib/wake/wake"

-- Largest cost of all hand-overs of one script, in bytes of records. A message costs
-- HAND_OVER_MESSAGE in addition, and a hand-over at least HAND_OVER_LEAST.
local HAND_OVERS_COST, HAND_OVER_LEAST, HAND_OVER_MESSAGE = 262144, 8192, 400

-- Return whether a key is of this type, or missing.
local function is_kind(key, kind)
  local found = redis.call('TYPE', key).ok
  return found == kind or found == 'none'
end

-- Return whether a message may be handed over. `bytes`: of the records before it in this hand-over.
local function is_plain(record, bytes, now)
  local flags = string.byte(record or '', 1) or MERGES
  if flags % HEADERS >= MERGES or #record < FIXED then
    return false
  end
  if flags % MERGES >= EXPIRES then
    -- The expiry comes after the fixed bytes and the due time, if there is one.
    local expiry_at = FIXED + 1 + (flags % EXPIRES == TIMED and TIME_BYTES or 0)
    if #record < expiry_at + TIME_BYTES - 1 or read48(record, expiry_at) <= now then
      return false
    end
  end
  return bytes + #record <= (bytes == 0 and HAND_OVER_LARGEST or HAND_OVER_BYTES)
end

-- Return the first messages of a page (members and scores in turn) that may be handed over
-- together: `ids`, `records`, `retries` (the retries remaining of each as a byte), `bytes` of the
-- records, and `any_failed`. `any_entries`: whether the slot has failure entries.
local function plain_messages(page, max_retries, any_entries, now)
  local ids, taken, retries, bytes, any_failed = {}, {}, {}, 0, false
  for i = 1, #page, 2 do
    local record = redis.call('HGET', records, page[i])
    if not is_plain(record, bytes, now) then
      break
    end
    local n, score, retries_left = #ids + 1, tonumber(page[i + 1]), max_retries
    if score < PRIORITY_MIN then -- the integer is the deliveries left
      retries_left = math.max(0, math.min(max_retries, math.floor(score) - 1))
    elseif any_entries then
      --- @include "lib/settle/failures"
      local entry = redis.call('HGET', failures, page[i])
      retries_left = entry and retries_in(entry, max_retries) or retries_left
    end
    any_failed = any_failed or retries_left < max_retries
    ids[n], taken[n], retries[n] = page[i], record, string.char(retries_left)
    bytes = bytes + #record
  end
  return { ids = ids, records = taken, retries = retries, bytes = bytes, any_failed = any_failed }
end

-- Move messages to the PrepareQueue. `delivered`: number of the last delivery before these.
local function lease_messages(batch, deadline, delivered)
  local receipts, ids = {}, batch.ids
  for n = 1, #ids do
    local retries_left = string.byte(batch.retries[n])
    local receipt = receipt_text(deadline, retries_left, delivered + n)
    receipts[2 * n - 1], receipts[2 * n] = receipt, ids[n]
  end
  redis.call('ZREM', store, unpack(ids))
  redis.call('ZADD', prepare, unpack(receipts))
end

-- Return the messages for the owner of a credit, as plain_messages does; nil if no message waits,
-- or prepare has to take the messages. Sets `left_over` of the state: whether messages wait.
local function messages_for(credit, state)
  local limit = math.min(credit.limit, HAND_OVER_MOST)
  local page = redis.call('ZREVRANGEBYSCORE', store, state.past, 0, 'WITHSCORES', 'LIMIT', 0, limit)
  state.left_over = #page > 0
  if not state.left_over or tonumber(page[2]) >= PRIORITY_END then
    return nil -- nothing waits, or a message is due
  end
  if (state.takes + 1) % TURNS == 0
      and redis.call('ZCOUNT', store, 0, BELOW_PRIORITY_MIN) > 0 then
    return nil -- this take begins with retries
  end
  local batch = plain_messages(page, state.max_retries, state.any_entries, state.now)
  return #batch.ids > 0 and batch or nil
end

-- Hand messages over to the owner of a credit. Return whether this was done. If no connection
-- receives them, the messages stay in the StoreQueue.
local function hand_over(batch, credit, state)
  local first_delivery, retries = state.delivered + 1, ''
  if batch.any_failed or state.are_retries_changed then
    retries = table.concat(batch.retries)
  end
  local deadline = deadline_of(credit.lease, state.now)
  local sent = publish_deliveries(credit.channel, { credit.number, state.index, deadline,
    first_delivery, state.accepted, retries, batch.ids, batch.records })
  if not sent then
    return false
  end
  lease_messages(batch, deadline, state.delivered)
  local deliveries = delivery_answer(deadline, first_delivery, table.concat(batch.ids))
  local answer = session_answer(credit.call_number, state.seconds, deliveries)
  redis.call('HSET', slot, credit.session, answer)
  local count = #batch.ids
  state.delivered, state.takes = state.delivered + count, state.takes + 1
  state.cost = state.cost + math.max(HAND_OVER_LEAST, batch.bytes + HAND_OVER_MESSAGE * count)
  return true
end

-- Hand waiting messages over to consumers, in the order of their credits. Return whether messages
-- may be left.
local function hand_over_waiting(credits, state)
  local steps, takes = 0, state.takes
  if state.delivered >= BY_CLOCK then
    steps = steps_to(state.delivered, state.now * 1000)
    state.delivered = state.delivered + steps
  end
  for _ = 1, CREDITS_MAX do
    if state.cost >= HAND_OVERS_COST then
      break
    end
    local credit = first_credit(credits)
    if not credit then
      credits = ''
      break
    end
    local is_served = false
    if credit.till > state.now then
      local batch = messages_for(credit, state)
      if not batch then
        break
      end
      is_served = hand_over(batch, credit, state)
    end
    credits = is_served and credits_after(credit) or credit.others
  end
  redis.call('HSET', slot, 'credits', credits)
  if state.takes == takes then
    return state.left_over
  end
  redis.call('HSET', slot, 'delivered', state.delivered, 'takes', state.takes)
  if steps > 0 then
    redis.call('HINCRBY', slot, 'skipped', string.format('%.0f', steps))
  end
  return state.left_over and redis.call('ZCOUNT', store, '-inf', state.past) > 0
end

-- Hand waiting messages over to sleeping consumers. If some are left, wake the consumers. The
-- caller has stored everything, so a key of a wrong type is no error here.
local function serve_sleepers(channel, index, now)
  local credits, max_retries, delivered, takes, accepted, ordered, order, front, paused, limit,
    grouped, waited = unpack(redis.call('HMGET', slot, 'credits', 'max_retries', 'delivered',
      'takes', 'accepted', 'ordered', 'order', 'front', 'paused', 'limit', 'groups', 'waited'))
  local is_plain_slot = not ordered and not paused and not limit and not grouped
    and not waited and tonumber(order or 0) < ORDER_END and tonumber(front or 0) > -ORDER_END
  local left_over = true
  if (credits or '') ~= '' and is_plain_slot and is_kind(prepare, 'zset')
      and is_kind(failures, 'hash') then
    left_over = hand_over_waiting(credits, {
      index = index, now = now, seconds = string.format('%010d', now / 1000), cost = 0,
      past = string.format('(%.0f', now + 1), left_over = true,
      max_retries = tonumber(max_retries),
      are_retries_changed = string.byte(max_retries, 1) == RETRIES_CHANGED,
      any_entries = redis.call('HLEN', failures) > 0, accepted = tonumber(accepted or 0),
      delivered = tonumber(delivered or 0), takes = tonumber(takes or 0),
    })
  end
  if left_over then
    wake(channel, index)
  end
end
