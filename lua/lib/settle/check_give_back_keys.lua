-- The check of the keys that a failed delivery may change.
--- @needs store records dead failures audit bodies pending targets results keeping
--- @include "lib/slot_fields"

-- Stop the script if a key has a wrong type. Call it before the first write. `fields`: from
-- read_return_fields.
--- @inline
local function check_give_back_keys(fields)
  redis.call('ZCARD', store)
  redis.call('HLEN', records)
  redis.call('ZCARD', dead)
  redis.call('HLEN', failures)
  redis.call('HLEN', bodies)
  redis.call('HLEN', results)
  redis.call('ZCARD', keeping)
  if fields[AUDITED] then
    redis.call('ZCARD', audit)
  end
  if fields[DEAD_TO] then
    redis.call('ZCARD', pending)
    redis.call('ZCARD', targets)
  end
end
