-- Sleeping consumers: when they next have work, noting them, waking them.
--- @needs slot store prepare
--- @include "lib/scores/score_ranges"
--- @include "lib/leases/shared_leases"
--- @include "lib/writes"

-- The (microseconds, field) until a slot next has work for a consumer: 0 now, -1 never as things stand. Work is a
-- message that may be taken, or a lease that expired. A slot in order (`hold` is not nil) has none before its hold, and
-- none while something is in flight but a lease that expires. `leases_until`: when the first lease ends that stands for
-- many deliveries, epoch ms, or false; their own deadlines never come. The field is where a sleeper is noted: `blocked` when
-- it waits for others to settle their deliveries, so that sends do not wake it in vain; nil where no message can wake
-- it; else `waiting`. `gate` is nil, or says when the slot gives messages again: `at`, epoch ms, or math.huge where that
-- depends on others; `field`, of those who wait for that.
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

-- How long a consumer that sleeps is noted, and what must be left of that for it to be noted anew: a consumer of many slots looks
-- at each of them once in two minutes. The note of one that is gone costs the slot's next send a PUBLISH that nobody hears.
local ASLEEP_MS, ASLEEP_LEFT_MS = 300000, 200000

-- Whether a consumer that goes to sleep is to be noted, where the field says `noted`.
local function is_to_note(noted, now)
  return tonumber(noted or 0) < now + ASLEEP_LEFT_MS
end

-- Note that a consumer may be asleep for the next minutes, also while Redis is at maxmemory. `field` comes from
-- next_ready_in.
local function note_sleeper(field, now)
  allow_oom(store)
  redis.call('HSET', slot, field, now + ASLEEP_MS)
end

-- Whether a consumer may be asleep: `waiting` is the time until which it said so. A busy topic has none, and pays
-- nothing.
local function is_awaited(waiting, now)
  return waiting and tonumber(waiting) > now
end

-- Wake the sleeping consumers of the topic. Consumers that are not reached find the work when they look at the slot in its turn.
-- The caller passes the channel: it belongs to the topic, and a channel is not a key. A refusal must not stop the script: a
-- Redis 7 user has no channels unless the ACL names them.
--- @inline
local function wake(channel, index)
  redis.call('HSET', slot, 'waiting', 0)
  redis.pcall('PUBLISH', channel, index)
end

-- Wake the consumers of the topic that may be asleep.
--- @inline
local function wake_sleepers(now, channel, index)
  local waiting = redis.call('HGET', slot, 'waiting')
  if waiting and tonumber(waiting) > now then
    wake(channel, index)
  end
end
