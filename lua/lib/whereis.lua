-- whereis: for a verb that changes a waiting message: its score, record and deliveries left, or nil and
-- where it is instead.
local function whereis(slot, store, prepare, records, dead, failures, id)
  local max_retries = redis.call('HMGET', slot, 'created', 'max_retries')
  if not max_retries[1] then
    fail('GONE', slot)
  end
  local score = redis.call('ZSCORE', store, id)
  if not score then
    if redis.call('ZSCORE', prepare, id) then
      return nil, 'in_flight'
    end
    return nil, redis.call('ZSCORE', dead, id) and 'dead' or 'gone'
  end
  local record = redis.call('HGET', records, id)
  if not record or #record < 8 then
    fail('RECORD', records)
  end
  local failed = redis.call('HGET', failures, id)
  local left = failed and string.byte(failed, 1) or tonumber(max_retries[2]) + 1
  return tonumber(score), record, left
end
