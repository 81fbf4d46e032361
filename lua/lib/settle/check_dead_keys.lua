-- The check of the keys that change if a message becomes a dead letter.
--- @needs records dead failures audit bodies pending targets results keeping

-- Stop the script if a key has a wrong type. Call it before the first write. `has_followers`:
-- whether other messages may follow a dead letter.
--- @inline
local function check_dead_keys(audited, has_followers)
  redis.call('HLEN', records)
  redis.call('ZCARD', dead)
  redis.call('HLEN', failures)
  redis.call('HLEN', bodies)
  redis.call('HLEN', results)
  redis.call('ZCARD', keeping)
  if audited then
    redis.call('ZCARD', audit)
  end
  if has_followers then
    redis.call('ZCARD', pending)
    redis.call('ZCARD', targets)
  end
end
