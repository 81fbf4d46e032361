-- Find a waiting message, in order to change it.
--- @needs slot store prepare records dead
--- @include "lib/check"
--- @include "lib/records/record"

-- Return the score and the record of a waiting message. If it is not waiting, return nil and its
-- state: in_flight, dead or gone.
local function find_waiting(id)
  if redis.call('HEXISTS', slot, 'created') == 0 then
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
  if not record or #record < FIXED then
    fail('RECORD', records)
  end
  return tonumber(score), record
end
