--[[
hand_over_alone: hand over one plain message that would be the only one to take, for send. It never enters the StoreQueue. This
is lib/hand_over without anything that such a message does not need. The record is written first: Redis refuses that at
maxmemory, before anybody has heard of the message. Where no credit is any good, the message is stored like any other.

Reads:     slot, store, records: keys
           KEYS: the PrepareQueue is the tenth
           ARGV: index and rest of the record
           first, head, accepted, order, session, number, now_ms, seconds
Writes:    nothing
Declares:  c, credits, prepare, kind
Returns for the caller: yes: the answer, when the message was handed over
]]
--- @include "lib/wake"
--- @include "lib/credits"
local prepare, kind = KEYS[10], redis.call('TYPE', KEYS[10]).ok
local c = redis.call('HMGET', slot, 'credits', 'max_retries', 'delivered', 'takes', 'ordered', 'paused', 'limit')
local credits = c[1] or ''
if credits ~= '' and tonumber(c[3] or 0) < 1e12 and not c[5] and not c[6] and not c[7] and #ARGV[9] + 8 <= HAND_OVER_LARGEST
    and redis.call('ZCOUNT', store, '-inf', string.format('(%d', now_ms + 1)) == 0 and (kind == 'zset' or kind == 'none') then
  local record = head .. struct.pack('>I4', accepted % 4294967296) .. ARGV[9]
  local delivery = tonumber(c[3] or 0) + 1
  redis.call('HSET', records, first, record)
  for _ = 1, CREDITS_MAX do
    local _, last, channel, credit, till, limit, lease, taker, taken, calls = string.find(credits, FIRST_CREDIT)
    credits = last and string.sub(credits, last + 1) or ''
    if last and tonumber(till) > now_ms then
      local deadline = deadline_of(lease, now_ms)
      local batch = { credit, ARGV[4], deadline, delivery, accepted, '', { first }, { record } }
      if publish_deliveries(channel, batch) then
        redis.call('ZADD', prepare, string.format('%d.%011d', deadline * 1000 + c[2], delivery % 2048 * 48828125), first)
        redis.call('HSET', slot, 'accepted', accepted, 'order', order, session,
          number .. ':' .. seconds .. ':' .. accepted .. ':', 'delivered', delivery,
          'takes', tonumber(c[4] or 0) + 1, 'credits', credits_after(credits, channel, credit, till, limit, lease, calls),
          taker, string.format('%s:%s:%d:%d:', taken, seconds, deadline, delivery) .. first)
        return { accepted, '' }
      end
    end
  end
  redis.call('HSET', slot, 'credits', '')
end
