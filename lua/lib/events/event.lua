--[[
Events: a program signals a key, and the messages that wait for this key continue. Messages of any
topic may wait for a key. So events have 64 slots of their own, and the CRC-32 of the key chooses
the slot.

  event        a hash, if the event was signalled. Its field `e` has the time of the event and the
               end of its keeping (6 bytes each, epoch ms), the number of a codec, and the body. It
               expires at the end of its keeping, but not while a message in `waiters` has not got
               it. A string would need a right to SET, with which a user of Redis 6.2 could replace
               the list of all topics
  waiters      `<topic>:<index>:<member>` of a waiting message -> end of its time limit, epoch ms
  undelivered  key of an event that some waiters have not got -> time, epoch ms, from which another
               process delivers it. All events of a slot share this sorted set

The first signal of a key stores the event. Then the process that signalled reads the waiters, makes
their messages due (event_deliver), and removes the waiters here (event_waiters). If the process
dies, another process continues. A message that waits for a key with an event is not added to the
waiters: it gets the event at once.
]]
--- @needs event waiters undelivered
--- @include "lib/records/record_bytes"
local EVENT_HEAD = 12 -- bytes of an event before its codec
local DELIVER_MS = 5000 -- how long a process delivers an event alone

-- Return the first waiters of an event. If there are none, the event expires at the end of its
-- keeping. `stored`: the field of the event
--- @inline
local function next_waiters(key, stored, limit, now)
  local names = redis.call('ZRANGE', waiters, 0, limit - 1)
  if #names > 0 then
    redis.call('ZADD', undelivered, now + DELIVER_MS, key)
    redis.call('PERSIST', event)
    redis.call('PERSIST', waiters)
  else
    redis.call('ZREM', undelivered, key)
    redis.call('PEXPIRE', event, string.format('%.0f', math.max(1, read48(stored, 7) - now)))
  end
  return names
end
