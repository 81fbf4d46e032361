-- take: what prepare and query_take share. It stands in place, not in a function, and what is seldom needed stands
-- in its branch with what it needs: every function of a script is made anew at each run, which is dear for
-- a script that takes one message.
--
-- Expects slot, store, prepare, records, dead, failures, merge, audit (keys), now, now_us, limit, waits, ordered,
-- created (the stamp of the topic that the caller opened), again (an earlier copy of this call had no reply; then
-- lane, number and remember).
-- Leaves ids and reply (its fields but the deadline), max_retries, lefts (false, or what remains to those
-- that have failed before, by place), drained (nothing more to take just now). Ends the script when there
-- is nothing to take.
local s = redis.call('HMGET', slot, 'created', 'max_retries', 'chunk', 'order', 'delivered', 'takes', 'accepted',
  'ordered', 'audited', 'queries_until', 'front')
if s[1] ~= created then
  fail(s[1] and 'ANEW' or 'GONE', slot)
end
if s[9] then
  redis.call('ZCARD', audit)
end
local max_retries, chunk, takes = tonumber(s[2]), tonumber(s[3]), tonumber(s[6] or 0) + 1
-- A deadline is a whole second, a receipt just above it.
local lapsed = redis.call('ZCOUNT', prepare, '-inf', '(' .. string.format('%.0f', math.floor(now / 1000) * 1000 + 1000))
local failed = redis.call('HLEN', failures)
local any_failed = failed > 0
local TAKE_MOST, TAKE_BYTES = 1000, 16777216
local ORDER_END = 4294967296 -- from here on, scores of the largest priorities tie
local ids, lefts, joined, hold = {}, false, 0, nil
local unheld = s[10] and tonumber(s[10]) <= now -- the lease of a query has run out
local reply = { 0, (lapsed > 0 and 1 or 0) + (unheld and 2 or 0), 0, tonumber(s[5] or 0) + 1, tonumber(s[7] or 0), '', {}, {} }
if ordered or s[8] then
  --- @include "lib/one_batch"
end

-- Due timed messages go first, earliest first; then priorities, larger first; then retries, larger first.
-- One take in five begins with the retries, so that a flood of others cannot starve them, and every second one of
-- these with those that have the fewest deliveries left. A take in order
-- always does: what stands there failed before the slot was in order, and is older than all that waits.
for turn = 1, 3 do
  local family = (ordered or takes % 5 == 0) and (turn + 1) % 3 + 1 or turn
  local n = #ids
  if n >= limit then
    break
  end
  if family == 1 then
    local past = '(' .. string.format('%.0f', now + 1)
    local page = redis.call('ZRANGEBYSCORE', store, PRIORITY_END, past, 'WITHSCORES', 'LIMIT', 0, limit - n)
    if #page > 0 then
      --- @include "lib/due"
    end
  elseif family == 2 then
    local batch
    if tonumber(s[4] or 0) < ORDER_END and tonumber(s[11] or 0) > -ORDER_END then
      batch = redis.call('ZREVRANGEBYSCORE', store, '(1048576', PRIORITY_MIN, 'LIMIT', 0, limit - n)
    else
      --- @include "lib/ties"
    end
    if any_failed and #batch > 0 then
      lefts = lefts or {}
      local told = redis.call('HMGET', failures, unpack(batch))
      for i = 1, #batch do
        lefts[n + i] = told[i] and math.max(0, string.byte(told[i], 1) - 1) or nil
      end
    end
    if n == 0 then
      ids = batch
    else
      for i = 1, #batch do
        ids[n + i] = batch[i]
      end
    end
  else
    local batch = redis.call('ZREVRANGEBYSCORE', store, '(17', 0, 'WITHSCORES', 'LIMIT', 0, limit - n)
    if #batch > 0 then
      if takes % 10 == 0 and not ordered then
        --- @include "lib/fewest"
      end
      lefts = lefts or {}
      for i = 1, #batch / 2 do
        ids[n + i] = batch[2 * i - 1]
        lefts[n + i] = math.max(0, math.floor(tonumber(batch[2 * i])) - 1)
      end
    end
  end
end

-- The records, as many as 16 MiB hold. An id without a record stops the script: nothing has been taken.
-- `closer`: the places of those to be looked at before they leave, since they may have expired or stand in
-- the merge index (flags 2 and 4).
local picked, found, closer, bytes, from = #ids, {}, nil, 0, 1
while from <= picked and bytes < TAKE_BYTES do
  local to = math.min(picked, from + chunk - 1)
  local batch = redis.call('HMGET', records, unpack(ids, from, to))
  for i = 1, #batch do
    local record = batch[i]
    if not record or #record < 8 then
      fail('RECORD', records)
    end
    bytes = bytes + #record
    if string.byte(record, 1) % 8 >= 2 then
      closer = closer or {}
      closer[#closer + 1] = from + i - 1
    end
    if from > 1 then
      found[from + i - 1] = record
    end
  end
  if from == 1 then
    found = batch
  end
  from = to + 1
end

local all = #found
local n = all
if all == 0 then
  --- @include "lib/nothing"
end
if closer then
  --- @include "lib/leave"
else
  redis.call('ZREM', store, unpack(ids, 1, all))
end
redis.call('HSET', slot, 'delivered', reply[4] + n - 1, 'takes', takes)
if hold then
  -- Past the places of what came back since the last take; lib/in_order counts from there.
  local places = redis.call('HMGET', slot, 'front', 'span')
  redis.call('HSET', slot, 'front', tonumber(places[1] or 0) - tonumber(places[2] or 0), 'ordered', 1)
  redis.call('HDEL', slot, 'span', 'holder', 'mixed')
  if not ordered then
    redis.call('HDEL', slot, 'ordered') -- nothing is in flight and nothing held: a plain caller ends the order
  end
end
if lefts then
  local marks = {}
  for i = 1, n do
    lefts[i] = lefts[i] or max_retries
    marks[i] = string.char(lefts[i])
  end
  reply[6] = table.concat(marks)
end
if picked > n then
  ids, found = { unpack(ids, 1, n) }, { unpack(found, 1, n) }
end
reply[7], reply[8] = ids, found
local drained = all < limit and all == picked and joined == 0
