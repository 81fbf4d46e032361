-- Sleeping consumers: when they next have work, how they are noted and woken.
--- @needs slot store prepare
--- @include "lib/scores/score_ranges"
--- @include "lib/leases/shared_leases"
--- @include "lib/writes"

-- Return the us until a slot next has work for a consumer (0 now, -1 never as things are), and the
-- field where a sleeping consumer is noted. Work is a message that may be taken, or a lease that
-- has expired.
--
--   leases_until  when the first query's or shared lease ends, epoch ms, or false; the deadlines of
--                 its deliveries never come
--   hold          of a slot in order, else nil: it has no work before its hold and, while a
--                 delivery is in flight, none but a lease that expires
--   gate          nil, or when the slot gives messages again: `at`, epoch ms, or math.huge if that
--                 depends on others; `field`, where a consumer that waits for that is noted
--
-- The field is `waiting`; `blocked` if the consumer waits for others to settle their deliveries, so
-- that sends do not wake it in vain; nil if no message can wake it.
local function next_ready_in(now_us, leases_until, hold, gate)
  local first, ready = redis.call('ZRANGE', store, 0, 0, 'WITHSCORES')[2], nil
  if first and tonumber(first) < 0 then -- it is held behind others of its group
    first = redis.call('ZRANGEBYSCORE', store, 0, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  end
  if first and tonumber(first) < PRIORITY_END then
    if not hold and not gate then
      return 0, 'waiting'
    end
    ready = 0
  else
    ready = first and math.floor(tonumber(first))
  end
  local field = 'waiting'
  if gate and (gate.at == math.huge or ready and ready < gate.at) then
    ready, field = gate.at < math.huge and gate.at or nil, gate.field
  end
  local lease = redis.call('ZRANGE', prepare, 0, 0, 'WITHSCORES')
  if lease[2] then
    local deadline = math.floor(tonumber(lease[2]) / 1000) * 1000
    deadline = deadline < SHARED * 1000 and deadline or math.huge
    if hold then
      field = ready and 'blocked' or field
      ready = deadline
    elseif not ready or deadline < ready then
      ready = deadline
    end
  elseif ready and hold and hold > ready then
    ready, field = hold, 'blocked'
  end
  ready = math.min(ready or math.huge, tonumber(leases_until or math.huge))
  if ready == math.huge then
    return -1, field
  end
  return math.max(0, ready * 1000 - now_us), field
end

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
