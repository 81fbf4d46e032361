-- nothing: part of take. There was nothing to take: tell until when, note that the caller may sleep, end.
--- @include "lib/soon"
--- @include "lib/drain"
--- @include "lib/waiting"
local wait, note = soon(store, prepare, now_us, hold)
reply[1] = joined > 0 and 0 or wait
if waits == '1' and reply[1] ~= 0 and tonumber(redis.call('HGET', slot, note) or 0) < now + 1500 then
  say_waiting(slot, store, note, now)
end
if again then
  -- A poll that finds nothing writes nothing; but an earlier copy of this one may still be in the network.
  drain(store)
  remember(lane, number, '0:0:')
end
return reply
