--[[
promote_due: pick due messages for take_messages. A due message that has a priority does not go at once: it joins its
priority as the newest there. So does one without a priority, where the topic's `timed_priority` says which one it joins. At
most 1000 join in one call.

Reads:     store, records, failures, slot: keys
           s, n, limit, past, any_failed, TAKE_MOST, TAKE_BYTES
           page: the first due messages with their scores
           ids: gets the picked messages
           retries_left, max_retries
Writes:    retries_left, page
           promoted: how many messages joined their priority
Declares:  DUE_PAGE, timed_priority, record_bytes, seen, joining, full, order, front, RESTART
Returns for the caller: no
]]
--- @include "lib/check"
--- @include "lib/record"
--- @include "lib/score"
--- @include "lib/timed_score"
--- @include "lib/writes"
local DUE_PAGE = 100 -- of further pages: where many join, a page of what is still missing would be one message
local timed_priority = tonumber(s[15] or 0)
local record_bytes, seen, joining, full = 0, 0, {}, false
local order, front = tonumber(s[4] or 0), 0 -- `front` is left alone here
--- @include "lib/inline/restart_counters"
while #page > 0 and not full do
  for i = 1, #page, 2 do
    local id, score, priority = page[i], tonumber(page[i + 1]), 0
    local _, has_priority = timed_fraction(score)
    if has_priority == 1 and score >= TIMED_MIN then
      local record = redis.call('HGET', records, id)
      if not record or #record < 8 then
        fail('RECORD', records)
      end
      record_bytes = record_bytes + #record
      priority = priority_of(record)
    end
    priority = priority > 0 and priority or timed_priority
    if priority == 0 then
      ids[#ids + 1] = id
    else
      order = order + 1
      joining[#joining + 1], joining[#joining + 2] = ordered_score(priority, order), id
    end
    full = #ids >= limit or #joining >= 2 * TAKE_MOST or record_bytes >= TAKE_BYTES
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
  --- @include "lib/failures"
  retries_left = retries_left or {}
  local entries = redis.call('HMGET', failures, unpack(ids, n + 1))
  for i = 1, #entries do
    retries_left[n + i] = entries[i] and retries_in(entries[i], max_retries) or nil
  end
end
if #joining > 0 then
  promoted = #joining / 2
  allow_oom(store)
  redis.call('ZADD', store, unpack(joining))
  redis.call('HSET', slot, 'order', order)
end
