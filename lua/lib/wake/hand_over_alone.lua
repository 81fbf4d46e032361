-- Hand over a single plain message that would be the only one to take, for the short form of send.
-- The long form does the same for all messages, by lib/wake/hand_over.
--- @needs slot store prepare records
--- @include "lib/wake/credits"
--- @include "lib/take/delivery_numbers"
--- @include "lib/leases/receipt"
--- @include "lib/session"
--- @include "lib/take/delivery_answer"

-- Hand a message over to a sleeping consumer, and write what send writes. The message never enters
-- the StoreQueue. Return whether the message was handed over, and if not, whether the long form has
-- to do it: another message waits, this message is large or a duplicate, or delivery numbers are
-- times.
--
-- The record is written first: at maxmemory, Redis refuses this write before any consumer receives
-- the message. Then the receipt is written, which fails if the key has a wrong type. If no credit
-- is usable, both writes are undone, and the only change is that the credits are removed.
--
-- - message: member, record, accepted, order; `session` and `answer`: field of the caller's session
--   and its value; `seconds`: time of the call, epoch s in 10 digits
-- - index: index of the slot
local function hand_over_alone(message, index, now)
  local credits, max_retries, delivered, takes, ordered, paused, limit =
    unpack(redis.call('HMGET', slot,
      'credits', 'max_retries', 'delivered', 'takes', 'ordered', 'paused', 'limit'))
  credits, delivered = credits or '', tonumber(delivered or 0)
  if credits == '' or ordered or paused or limit then
    return false, false
  end
  local member, record, accepted = message.member, message.record, message.accepted
  if delivered >= BY_CLOCK or #record > HAND_OVER_LARGEST
      or redis.call('ZCOUNT', store, '-inf', string.format('(%d', now + 1)) > 0
      or redis.call('HMGET', records, member)[1] then
    return false, true
  end
  local delivery = delivered + 1
  local retries = '' -- retries remaining, as a byte
  if string.byte(max_retries, 1) == RETRIES_CHANGED then
    retries = string.char(tonumber(max_retries))
  end
  redis.call('HSET', records, member, record)
  for _ = 1, CREDITS_MAX do
    local credit = first_credit(credits)
    if not credit then
      break
    end
    credits = credit.others
    if credit.till > now then
      local deadline = deadline_of(credit.lease, now)
      local receipt = receipt_text(deadline, max_retries, delivery)
      if type(redis.pcall('ZADD', prepare, receipt, member)) ~= 'number' then
        break
      end
      local sent = publish_deliveries(credit.channel,
        { credit.number, index, deadline, delivery, accepted, retries, { member }, { record } })
      if sent then
        local deliveries = delivery_answer(deadline, delivery, member)
        local consumer_answer = session_answer(credit.call_number, message.seconds, deliveries)
        redis.call('HSET', slot, 'accepted', accepted, 'order', message.order,
          message.session, message.answer, 'delivered', delivery,
          'takes', tonumber(takes or 0) + 1, 'credits', credits_after(credit),
          credit.session, consumer_answer)
        return true, false
      end
      redis.call('ZREM', prepare, member)
    end
  end
  redis.call('HDEL', records, member)
  redis.call('HSET', slot, 'credits', '')
  return false, false
end
