-- Handing over one plain message that would be the only one to take.
--- @needs slot store prepare records
--- @include "lib/wake/credits"
--- @include "lib/take/delivery_numbers"
--- @include "lib/leases/receipt"
--- @include "lib/records/record"
--- @include "lib/wake/wake"

-- Hand a message over to a sleeping consumer, and write all that send writes; return whether it was. It never enters the
-- StoreQueue. This is lib/wake/hand_over without anything that such a message does not need. The record is written first: Redis
-- refuses that at maxmemory, before anybody has heard of the message; then its receipt, where a key of a wrong type shows. Where
-- no credit is any good, all that stays is that they are gone. Nothing is done where there is such a record already. `answer`:
-- the value of the field of the caller's session.
--- @inline
local function hand_over_alone(index, member, record, accepted, order, session, answer, now, seconds)
  local handed_over = false
  local credits, max_retries, delivered, takes, ordered, paused, limit = unpack(redis.call('HMGET', slot, 'credits',
    'max_retries', 'delivered', 'takes', 'ordered', 'paused', 'limit'))
  credits = credits or ''
  if credits ~= '' and tonumber(delivered or 0) < BY_CLOCK and not ordered and not paused and not limit
      and #record <= HAND_OVER_LARGEST and redis.call('ZCOUNT', store, '-inf', string.format('(%d', now + 1)) == 0
      and not redis.call('HMGET', records, member)[1] then
    local delivery = tonumber(delivered or 0) + 1
    local marks = string.byte(max_retries, 1) == RECOUNTED and string.char(tonumber(max_retries)) or ''
    redis.call('HSET', records, member, record)
    for _ = 1, CREDITS_MAX do
      local _, last, channel, number, till, most, lease, taker, taken, calls = string.find(credits, FIRST_CREDIT)
      credits = last and string.sub(credits, last + 1) or ''
      if last and tonumber(till) > now then
        local deadline, receipt, sent
        deadline = deadline_of(lease, now)
        receipt = receipt_text(deadline, max_retries, delivery)
        if type(redis.pcall('ZADD', prepare, receipt, member)) ~= 'number' then
          break
        end
        sent = publish_deliveries(channel, { number, index, deadline, delivery, accepted, marks, { member }, { record } })
        if sent then
          local left
          left = credits_after(credits, channel, number, till, most, lease, calls)
          redis.call('HSET', slot, 'accepted', accepted, 'order', order, session, answer, 'delivered', delivery,
            'takes', tonumber(takes or 0) + 1, 'credits', left,
            taker, string.format('%s:%s:%d:%d:', taken, seconds, deadline, delivery) .. member)
          handed_over = true
          break
        end
        redis.call('ZREM', prepare, member)
      end
    end
    if not handed_over then
      redis.call('HDEL', records, member)
      redis.call('HSET', slot, 'credits', '')
    end
  end
  return handed_over
end
