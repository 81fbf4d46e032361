-- due: part of take. `page` holds the first due messages with their scores, and there is room for more
-- than `n`. A due message that has a priority does not go at once: it joins its priority, as the newest
-- there. At most 1000 join in one call, which is a step of its own; the caller comes again.
--- @include "lib/score"
--- @include "lib/timed"
--- @include "lib/head"
--- @include "lib/drain"
local DUE_PAGE = 100 -- further pages: where many join, a page of what is still missing would be one message
--- @include "lib/anew"
local past_bytes, seen, joins, order, full = 0, 0, {}, order_anew(store, tonumber(s[4] or 0)), false
while #page > 0 and not full do
  for i = 1, #page, 2 do
    local id, score, priority = page[i], tonumber(page[i + 1]), 0
    local _, ask = timed_fraction(score)
    if ask == 1 and score >= TIMED_MIN then
      local record = redis.call('HGET', records, id)
      if not record or #record < 8 then
        fail('RECORD', records)
      end
      past_bytes = past_bytes + #record
      priority = priority_of(record)
    end
    if priority == 0 then
      ids[#ids + 1] = id
    else
      order = order + 1
      joins[#joins + 1], joins[#joins + 2] = ordered_score(priority, order), id
    end
    full = #ids >= limit or #joins >= 2 * TAKE_MOST or past_bytes >= TAKE_BYTES
    if full then
      break
    end
  end
  if not full then
    seen = seen + #page / 2
    page = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES', 'LIMIT', seen, DUE_PAGE)
  end
end
if any_failed and #ids > n then
  lefts = lefts or {}
  local told = redis.call('HMGET', failures, unpack(ids, n + 1))
  for i = 1, #told do
    lefts[n + i] = told[i] and math.max(0, string.byte(told[i], 1) - 1) or nil
  end
end
if #joins > 0 then
  joined = #joins / 2
  drain(store)
  redis.call('ZADD', store, unpack(joins))
  redis.call('HSET', slot, 'order', order)
end
