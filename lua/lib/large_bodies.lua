--[[
Large bodies stand beside the records, in a hash of their own, so that no script carries them. The client writes a body just
before the script that stores its record, in one transaction, and reads it with a plain command. The Python twin is
rmq/kernel/core/record.py.

Such a record has the flag 8 without the flag 4, and ends with a reference instead of a body: the size (4 bytes), then 8 random
bytes of its sender. The body has the name <member><8 bytes>, so two senders of one id never write the same field.
The field `large` of the slot counts them.
]]
--- @include "lib/record"
local REFERENCE = 12

-- Whether a record refers to a large body, by its head; an empty one does not.
local function is_large(record)
  local flags = (string.byte(record, 1) or 0) % 16
  return flags >= COLLECTS and flags < COLLECTS + MERGES
end

-- The name of the body that a record, or the rest of one, refers to.
local function body_name(member, record)
  return member .. string.sub(record, -8)
end

-- The size of the body that the record of a large one refers to.
local function large_size(record)
  return #record >= FIXED + REFERENCE and struct.unpack('>I4', record, #record - REFERENCE + 1) or 0
end

-- Remove records, with the large bodies that they refer to. Every write here frees memory, until bodies were removed.
local function drop_records(slot, records, bodies, ids)
  local names = {}
  if redis.call('HLEN', bodies) > 0 then
    local page = tonumber(redis.call('HGET', slot, 'chunk') or 1)
    for from = 1, #ids, page do
      local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + page - 1)))
      for i = 1, #batch do
        if batch[i] and is_large(batch[i]) then
          names[#names + 1] = body_name(ids[from + i - 1], batch[i])
        end
      end
    end
  end
  redis.call('HDEL', records, unpack(ids))
  if #names > 0 then
    redis.call('HDEL', bodies, unpack(names))
    if redis.call('HINCRBY', slot, 'large', -#names) <= 0 then
      redis.call('HDEL', slot, 'large')
      redis.call('UNLINK', bodies) -- with what a send has left that failed after its bodies were written
    end
  end
end

-- The names of the large bodies that come with a send, by position; false where there is none. `given`: from at + 1 on, as
-- send.lua has it.
local function sent_names(given, at, count, head, members)
  local names, any = {}, false
  for i = 1, count do
    local member, own, rest = given[at + i], given[at + count + 2 * i - 1], given[at + count + 2 * i]
    if members then
      member, own, rest = members[i], head, given[at + 1 + i]
    end
    names[i] = is_large(own) and body_name(member, rest)
    any = any or names[i]
  end
  return any and names
end

-- Remove those of these bodies that no record refers to: their messages were not stored, or are settled.
local function drop_unused(records, bodies, names)
  for i = 1, names and #names or 0 do
    local name = names[i]
    local member = name and string.sub(name, 1, -9)
    local record = name and redis.call('HGET', records, member)
    if name and not (record and is_large(record) and body_name(member, record) == name) then
      redis.call('HDEL', bodies, name)
    end
  end
end
