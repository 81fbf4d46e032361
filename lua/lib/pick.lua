-- pick: which members of the StoreQueue go next, at most `limit`, with the retries each has left.
--   due timed messages, earliest first; then priority, larger first; then retries, larger first.
--   With retries_first the retries lead, so that a flood of others cannot starve them.
-- A due message that has a priority does not go at once: it joins its priority, as the newest there.
-- At most 1000 join in one call; the caller comes again.
local PICK_MOST, PICK_BYTES = 1000, 16777216

local function pick(keys, settings, now, limit, retries_first)
  local store, records, failures = keys.store, keys.records, keys.failures
  local ids, lefts = {}, {}
  local joined, touched = 0, false
  local any_failed = redis.call('HLEN', failures) > 0

  local function take_due()
    local bytes = 0
    local past = '(' .. string.format('%.0f', now + 1)
    while #ids < limit and joined < PICK_MOST and bytes < PICK_BYTES do
      local from = #ids
      local want = math.min(limit - from, settings.chunk)
      local batch = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, past, 'WITHSCORES', 'LIMIT', settings.due_skip, want)
      if #batch == 0 then
        return
      end
      for i = 1, #batch, 2 do
        local id, left, ask = batch[i], timed_fraction(tonumber(batch[i + 1]))
        local priority = 0
        if ask == 1 then
          local record = redis.call('HGET', records, id)
          if not record then
            fail('RECORD', records)
          end
          bytes = bytes + #record
          priority = priority_of(record)
        end
        if priority == 0 then
          ids[#ids + 1], lefts[#lefts + 1] = id, left - 1
          settings.due_skip = settings.due_skip + 1
        else
          if not touched then
            touched = true
            redis.call('ZREM', store, '')
          end
          settings.order = settings.order + 1
          joined = joined + 1
          redis.call('ZADD', store, ordered_score(priority, settings.order), id)
        end
      end
    end
  end

  local function take_priority()
    if #ids >= limit then
      return
    end
    local batch = redis.call('ZREVRANGEBYSCORE', store, '(' .. PRIORITY_END, PRIORITY_MIN, 'LIMIT', 0, limit - #ids)
    local told = any_failed and #batch > 0 and redis.call('HMGET', failures, unpack(batch))
    local n = #ids
    for i = 1, #batch do
      ids[n + i] = batch[i]
      lefts[n + i] = told and told[i] and string.byte(told[i], 1) - 1 or settings.max_retries
    end
  end

  local function take_retries()
    if #ids >= limit then
      return
    end
    local batch = redis.call('ZREVRANGEBYSCORE', store, '(' .. PRIORITY_MIN, 0, 'WITHSCORES', 'LIMIT', 0, limit - #ids)
    for i = 1, #batch, 2 do
      ids[#ids + 1] = batch[i]
      lefts[#lefts + 1] = math.max(0, math.floor(tonumber(batch[i + 1])) - 1)
    end
  end

  settings.due_skip = 0
  if retries_first then
    take_retries()
  end
  take_due()
  take_priority()
  if not retries_first then
    take_retries()
  end
  return ids, lefts, joined
end

-- fetch: the records of picked ids, as many as 16 MiB hold. A picked id without a record stops the
-- script: nothing has been taken yet.
local function fetch(records, ids, chunk)
  local found, bytes, from = {}, 0, 1
  while from <= #ids and bytes < PICK_BYTES do
    local to = math.min(#ids, from + chunk - 1)
    local batch = redis.call('HMGET', records, unpack(ids, from, to))
    for i = 1, #batch do
      local record = batch[i]
      if not record or #record < 8 then
        fail('RECORD', records)
      end
      bytes = bytes + #record
      found[from + i - 1] = record
    end
    from = to + 1
  end
  return found
end

-- leave: what else a message has when it leaves the StoreQueue for a consumer: its place in the merge
-- index. Also tells whether it has expired.
local function leaving(records_by_i, ids, merge, now)
  local keys, expired = nil, nil
  for i = 1, #records_by_i do
    local record = records_by_i[i]
    local head = string.byte(record, 1)
    if head % 8 >= 2 then
      local _, expiry, key = envelope(record)
      if key then
        local at = redis.call('HGET', merge, key)
        if at and string.sub(at, 1, 16) == ids[i] then
          keys = keys or {}
          keys[#keys + 1] = key
        end
      end
      if expiry and expiry <= now then
        expired = expired or {}
        expired[i] = true
      end
    end
  end
  return keys, expired
end
