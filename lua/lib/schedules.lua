-- The schedules of a topic. They are in slot 0, to which their messages go. So one script sends a
-- message and moves its schedule to the next time.
--- @needs slot schedules
--- @include "lib/check"
local AHEAD_MS = 60000 -- a time that is further in the future is from before the clock was set back

-- Stop the script if the slot does not belong to the topic that the caller opened.
local function check_created(created)
  local stamp = redis.call('HGET', slot, 'created')
  if stamp ~= created then
    fail(stamp and 'ANEW' or 'GONE', slot)
  end
end

-- Return the topic's generation: how often its last schedule was deleted. Schedulers read only
-- topics in the list of topics with schedules. A schedule is stored only under the generation that
-- is in the list. So an entry of an earlier generation can be removed at any time.
local function generation_of()
  return redis.call('HGET', schedules, 'generation') or '0'
end

-- Return the fields of a schedule in the hash. `moved` is when it got its next time. The field
-- `clock` is the latest such time of all schedules, epoch ms.
local function fields_of(name)
  return name .. ':definition', name .. ':timing', name .. ':revision', name .. ':next',
    name .. ':last', name .. ':sent', name .. ':moved'
end

-- Return whether a time is so far in the future that the clock must have been set back since.
local function is_ahead(time, now)
  return tonumber(time or 0) > now + AHEAD_MS
end

-- Store the next time of a schedule, and when it was computed.
local function note_move(name, next_ms, now)
  local latest = math.max(now, tonumber(redis.call('HGET', schedules, 'clock') or 0))
  redis.call('HSET', schedules, name .. ':next', next_ms, name .. ':moved', now, 'clock', latest)
end

-- Return the values of a schedule's fields, in the order of fields_of.
local function read_schedule(name)
  return redis.call('HMGET', schedules, fields_of(name))
end

-- Check the next time of a schedule, and its due time.
local function check_times(next_ms, due_ms)
  whole_number(next_ms, 0, NUMBER_MOST, 'next_ms')
  whole_number(due_ms, 0, NUMBER_MOST, 'due_ms')
end
