-- nothing: part of take. There was nothing to take: tell until when, note that the caller may sleep, end.
--- @include "lib/soon"
--- @include "lib/drain"
--- @include "lib/waiting"
reply[1] = joined > 0 and 0 or soon(store, prepare, now_us)
if waits == '1' and reply[1] ~= 0 and tonumber(redis.call('HGET', slot, 'waiting') or 0) < now + 1500 then
  say_waiting(slot, store, now)
end
return reply
