-- The messages that have failed.
--- @needs slot dead failures

-- Return how many messages of the slot have failed and are not dead. Dead letters have failure
-- entries as well, also in the trash.
--- @inline
local function count_failed()
  local failed = redis.call('HLEN', failures)
  if failed == 0 then
    return failed
  end
  failed = failed - redis.call('ZCARD', dead)
  if failed <= 0 then
    return failed
  end
  return failed - tonumber(redis.call('HGET', slot, 'trashed') or 0)
end
