--[[
count_failed: count the messages that have failed and are not dead. Each dead letter has a failure entry, too, also in the trash.

Reads:     slot, dead, failures: keys
Writes:    nothing
Declares:  failed
Returns for the caller: no
]]
local failed = redis.call('HLEN', failures)
if failed > 0 then
  failed = failed - redis.call('ZCARD', dead)
  if failed > 0 then
    failed = failed - tonumber(redis.call('HGET', slot, 'trashed') or 0)
  end
end
