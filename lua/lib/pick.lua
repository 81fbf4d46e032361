-- pick: which members of the StoreQueue go next, at most `limit`, with the retries left of those that failed before.
--   due timed messages, earliest first; then priority, larger first; then retries, larger first.
--   With retries_first the retries lead, so that a flood of others cannot starve them.
-- A due message that has a priority does not go at once: it joins its priority, as the newest there.
-- At most 1000 join in one call, which is a step of its own; the caller comes again.
local PICK_MOST, PICK_BYTES = 1000, 16777216

local function pick(keys, settings, now, limit, retries_first)
  local store, records, failures = keys.store, keys.records, keys.failures
  local ids, lefts = {}, {} -- a message that never failed has no entry in lefts
  local joined = 0
  local any_failed = redis.call('HLEN', failures) > 0

  local function take_due()
    local bytes, seen, joins = 0, 0, {}
    local past = '(' .. string.format('%.0f', now + 1)
    while #ids < limit and #joins < 2 * PICK_MOST and bytes < PICK_BYTES do
      local want = math.min(limit - #ids, settings.chunk)
      local batch = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, past, 'WITHSCORES', 'LIMIT', seen, want)
      if #batch == 0 then
        break
      end
      seen = seen + #batch / 2
      for i = 1, #batch, 2 do
        local id, left, ask = batch[i], timed_fraction(tonumber(batch[i + 1]))
        local priority = 0
        if ask == 1 then
          local record = redis.call('HGET', records, id)
          if not record or #record < 8 then
            fail('RECORD', records)
          end
          bytes = bytes + #record
          priority = priority_of(record)
        end
        if priority == 0 then
          ids[#ids + 1] = id
          if left <= settings.max_retries then
            lefts[#ids] = math.max(0, left - 1)
          end
        else
          settings.order = settings.order + 1
          joins[#joins + 1], joins[#joins + 2] = ordered_score(priority, settings.order), id
        end
      end
    end
    if #joins > 0 then
      joined = #joins / 2
      drain(store)
      redis.call('ZADD', store, unpack(joins))
      redis.call('HSET', keys.slot, 'order', settings.order)
    end
  end

  local function take_priority()
    if #ids >= limit then
      return
    end
    local batch = redis.call('ZREVRANGEBYSCORE', store, '(' .. PRIORITY_END, PRIORITY_MIN, 'LIMIT', 0, limit - #ids)
    local told = any_failed and #batch > 0 and redis.call('HMGET', failures, unpack(batch))
    local n = #ids
    if told then
      for i = 1, #batch do
        lefts[n + i] = told[i] and math.max(0, string.byte(told[i], 1) - 1) or nil
      end
    end
    if n == 0 then
      ids = batch
      return
    end
    for i = 1, #batch do
      ids[n + i] = batch[i]
    end
  end

  local function take_retries()
    if #ids >= limit then
      return
    end
    local batch = redis.call('ZREVRANGEBYSCORE', store, '(' .. PRIORITY_MIN, 0, 'WITHSCORES', 'LIMIT', 0, limit - #ids)
    for i = 1, #batch, 2 do
      ids[#ids + 1] = batch[i]
      lefts[#ids] = math.max(0, math.floor(tonumber(batch[i + 1])) - 1)
    end
  end

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

-- fetch: the records of picked ids, as many as 16 MiB hold, and the place of each that wants a closer
-- look before it leaves, because it may have expired or stands in the merge index. A picked id without
-- a record stops the script: nothing has been taken yet.
local function fetch(records, ids, chunk)
  local found, closer, bytes, from = {}, nil, 0, 1
  while from <= #ids and bytes < PICK_BYTES do
    local to = math.min(#ids, from + chunk - 1)
    local batch = redis.call('HMGET', records, unpack(ids, from, to))
    for i = 1, #batch do
      local record = batch[i]
      if not record or #record < 8 then
        fail('RECORD', records)
      end
      bytes = bytes + #record
      if string.byte(record, 1) % 8 >= EXPIRES then
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
  return found, closer
end

-- leaving: of the places in `closer`, the merge keys that go with them, and which have expired.
local function leaving(closer, found, ids, merge, now)
  local keys, expired = {}, nil
  for c = 1, #closer do
    local i = closer[c]
    local _, expiry, key = envelope(found[i])
    if key then
      local at = redis.call('HGET', merge, key)
      if at and string.sub(at, 1, 16) == ids[i] then
        keys[#keys + 1] = key
      end
    end
    if expiry and expiry <= now then
      expired = expired or {}
      expired[i] = true
    end
  end
  return keys, expired
end
