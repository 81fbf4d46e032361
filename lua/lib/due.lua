-- due: part of take. `page` holds the first due messages with their scores, and there is room for more
-- than `n`. A due message that has a priority does not go at once: it joins its priority, as the newest
-- there. At most 1000 join in one call, which is a step of its own; the caller comes again.
--- @include "lib/score"
--- @include "lib/timed"
--- @include "lib/head"
--- @include "lib/drain"
local past_bytes, seen, joins, order = 0, 0, {}, tonumber(s[4] or 0)
while #page > 0 do
  seen = seen + #page / 2
  for i = 1, #page, 2 do
    local id, left, ask = page[i], timed_fraction(tonumber(page[i + 1]))
    local priority = 0
    if ask == 1 then
      local record = redis.call('HGET', records, id)
      if not record or #record < 8 then
        fail('RECORD', records)
      end
      past_bytes = past_bytes + #record
      priority = priority_of(record)
    end
    if priority == 0 then
      ids[#ids + 1] = id
      if left <= max_retries then
        lefts = lefts or {}
        lefts[#ids] = math.max(0, left - 1)
      end
    else
      order = order + 1
      joins[#joins + 1], joins[#joins + 2] = ordered_score(priority, order), id
    end
  end
  local room = math.min(limit - #ids, chunk)
  if room < 1 or #joins >= 2 * TAKE_MOST or past_bytes >= TAKE_BYTES then
    break
  end
  page = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, past, 'WITHSCORES', 'LIMIT', seen, room)
end
if #joins > 0 then
  joined = #joins / 2
  drain(store)
  redis.call('ZADD', store, unpack(joins))
  redis.call('HSET', slot, 'order', order)
end
