-- Noting and waking sleeping consumers. lib/wake/next_ready_in says when they have work.
--- @needs slot store
--- @include "lib/writes"

-- A sleeping consumer is noted for ASLEEP_MS. It is not noted again while ASLEEP_LEFT_MS of that
-- are left. A consumer of many slots looks at each slot once in two minutes. A note of a consumer
-- that is gone costs the next send to the slot a PUBLISH without a listener.
local ASLEEP_MS, ASLEEP_LEFT_MS = 300000, 200000

-- Return whether to note a consumer that goes to sleep. `noted`: the value of the field, or false.
local function is_to_note(noted, now)
  return tonumber(noted or 0) < now + ASLEEP_LEFT_MS
end

-- Note that a consumer may be asleep for the next minutes, also while Redis is at maxmemory.
-- `field`: `waiting` or `blocked`, from next_ready_in.
--- @inline
local function note_sleeper(field, now)
  allow_oom(store)
  redis.call('HSET', slot, field, now + ASLEEP_MS)
end

-- Return whether a consumer may be asleep. `waiting`: the field of the slot, which is a time. In a
-- busy topic the field is missing.
local function is_awaited(waiting, now)
  return waiting and tonumber(waiting) > now
end

-- Wake the sleeping consumers of the topic. A consumer that is not reached finds the messages when
-- it next looks at the slot. A refusal does not stop the script: a user of Redis 7 may publish only
-- on channels that the ACL names.
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
