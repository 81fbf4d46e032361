-- The schedules of a topic. They live in slot 0, where their messages go, so that one script sends a message and moves its
-- schedule to the next time.
--- @needs slot schedules
--- @include "lib/check"

-- Stop unless the slot is of the topic that the caller opened.
local function check_created(created)
  local stamp = redis.call('HGET', slot, 'created')
  if stamp ~= created then
    fail(stamp and 'ANEW' or 'GONE', slot)
  end
end

-- How often the last schedule of the topic was deleted. Schedulers ask only topics that are listed; a schedule is stored
-- only under the generation that was listed before, so that an entry of an earlier one can be removed at any time.
local function generation_of()
  return redis.call('HGET', schedules, 'generation') or '0'
end

-- The fields of a schedule in the hash. `moved` is when it got its next time; the field `clock` is the latest such time of all
-- schedules, epoch ms.
local function fields_of(name)
  return name .. ':definition', name .. ':timing', name .. ':revision', name .. ':next', name .. ':last', name .. ':sent',
    name .. ':moved'
end

-- Whether something happened so far in the future that the clock must have been ahead then, and was set back.
local function is_ahead(time, now)
  return tonumber(time or 0) > now + 60000
end

-- Note the next time of a schedule, and when that was computed.
local function note_move(name, next_ms, now)
  local latest = math.max(now, tonumber(redis.call('HGET', schedules, 'clock') or 0))
  redis.call('HSET', schedules, name .. ':next', next_ms, name .. ':moved', now, 'clock', latest)
end

-- The values of a schedule's fields, in the order of fields_of.
local function read_schedule(name)
  return redis.call('HMGET', schedules, fields_of(name))
end

-- Check the next time of a schedule, and when it is due.
local function check_times(next_ms, due_ms)
  whole_number(next_ms, 0, NUMBER_MOST, 'next_ms')
  whole_number(due_ms, 0, NUMBER_MOST, 'due_ms')
end
