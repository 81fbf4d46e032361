-- Change the hash of a topic.
--- @needs topic
--- @include "lib/check"

-- Return whether the topic exists, has the stamp that the caller knows, and is not being deleted.
local function is_open(created)
  whole_number(created, 0, NUMBER_MOST, 'created')
  local stamp, deleting = unpack(redis.call('HMGET', topic, 'created', 'deleting'))
  return stamp == created and not deleting
end

-- Return the reply of a script: 1 if it has changed the topic, else 0, and all fields. A change
-- adds one to the revision, so that slots apply it.
local function change_reply(changed)
  if changed == 1 then
    redis.call('HINCRBY', topic, 'revision', 1)
  end
  local reply = redis.call('HGETALL', topic)
  table.insert(reply, 1, changed)
  return reply
end
