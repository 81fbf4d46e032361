-- Large bodies that a client has written for a send (lib/records/large_bodies).
--- @needs records bodies
--- @include "lib/member"
--- @include "lib/records/large_bodies"

-- Return the names of the large bodies of a send, by position; false for a message without a large
-- body. Return false if no message has a large body. `given`: as in send.lua, from at + 1 on.
local function sent_names(given, at, count, head, members)
  local names, any = {}, false
  for i = 1, count do
    local heads_at = at + count + 2 * i - 1
    local member, own_head, rest = given[at + i], given[heads_at], given[heads_at + 1]
    if members then
      member, own_head, rest = members[i], head, given[at + 1 + i]
    end
    local has_body = is_large(own_head)
    local name = body_name(member, rest)
    names[i] = has_body and name
    any = any or names[i]
  end
  return any and names
end

-- Remove the bodies that no record refers to: their messages were not stored, or are settled.
local function drop_unused(names)
  for i = 1, #names do
    local name = names[i]
    if name then
      local member = string.sub(name, 1, MEMBER)
      local record = redis.call('HGET', records, member) or ''
      local has_body = is_large(record)
      local its_name = body_name(member, record)
      if not has_body or its_name ~= name then
        redis.call('HDEL', bodies, name)
      end
    end
  end
end
