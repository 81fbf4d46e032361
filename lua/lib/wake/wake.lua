-- Sleeping consumers: how they are noted and woken. lib/wake/next_ready_in says when they have work.
--- @needs slot store
--- @include "lib/writes"

-- How long a sleeping consumer is noted, and how much of that must be left not to note it again: a
-- consumer of many slots looks at each slot once in two minutes. A note of a consumer that is gone
-- costs the next send to the slot a PUBLISH that reaches no listener.
local ASLEEP_MS, ASLEEP_LEFT_MS = 300000, 200000

-- Return whether to note a consumer that goes to sleep. `noted`: the value of the field, or false.
local function is_to_note(noted, now)
  return tonumber(noted or 0) < now + ASLEEP_LEFT_MS
end

-- Note that a consumer may be asleep for the next minutes, also while Redis is at maxmemory.
-- `field`: that of next_ready_in.
--- @inline
local function note_sleeper(field, now)
  allow_oom(store)
  redis.call('HSET', slot, field, now + ASLEEP_MS)
end

-- Return whether a consumer may be asleep. `waiting` is the time until which a consumer said so; a
-- busy topic has none, and pays nothing.
local function is_awaited(waiting, now)
  return waiting and tonumber(waiting) > now
end

-- Wake the sleeping consumers of the topic. A consumer that is not reached finds the work when it
-- next looks at the slot. The caller passes the channel: it belongs to the topic, and a channel is
-- not a key. A refusal does not stop the script: a user of Redis 7 has no channels unless the ACL
-- names them.
--- @inline
local function wake(channel, index)
  redis.call('HSET', slot, 'waiting', 0)
  redis.pcall('PUBLISH', channel, index)
end

-- Wake the consumers of the topic if one may be asleep.
--- @inline
local function wake_sleepers(now, channel, index)
  local waiting = redis.call('HGET', slot, 'waiting')
  if waiting and tonumber(waiting) > now then
    wake(channel, index)
  end
end
