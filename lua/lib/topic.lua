-- Changing the hash of a topic.
--- @needs topic
--- @include "lib/check"

-- Whether the topic exists, is the one that the caller opened, and is not being deleted.
local function is_open(created)
  whole_number(created, 0, NUMBER_MOST, 'created')
  local stamp, deleting = unpack(redis.call('HMGET', topic, 'created', 'deleting'))
  return stamp == created and not deleting
end

-- The reply after a change: whether there was one (1 or 0), and all fields. Slots follow the revision, which grows with it.
local function change_reply(changed)
  if changed == 1 then
    redis.call('HINCRBY', topic, 'revision', 1)
  end
  local reply = redis.call('HGETALL', topic)
  table.insert(reply, 1, changed)
  return reply
end
