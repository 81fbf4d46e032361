--[[
Large bodies stand beside the records, in a hash of their own, so that no script carries them. The client writes a body just
before the script that stores its record, in one transaction, and reads it with a plain command. The Python twin is
rmq/kernel/core/record.py.

Such a record has the flag 8 without the flag 4, and ends with a reference instead of a body: the size (4 bytes), then 8 random
bytes of its sender. The body has the name <member><8 bytes>, so two senders of one id never write the same field.
The field `large` of the slot counts them.

An offloaded body is in a store outside of Redis; its record has a reference to it: codec 3, and a first byte of its own. The
script that removes such a record for good leaves the reference in `bodies`, as `gone:<number>`, a tombstone: whoever has the
store removes the object, then the tombstone. `offloaded` of the slot is the newest number, 0 before the first; a slot without
that field has had no such body, and its scripts read no record for this. `released` is the number up to which they are removed.
]]
--- @needs slot records bodies
--- @include "lib/records/record"
local REFERENCE = 12

-- Whether a record refers to a large body, by its head; an empty one does not.
--- @inline
local function is_large(record)
  local flags = (string.byte(record, 1) or 0) % 16
  return flags >= COLLECTS and flags < COLLECTS + MERGES
end

-- The name of the body that a record, or the rest of one, refers to.
--- @inline
local function body_name(member, record)
  return member .. string.sub(record, -8)
end

-- The size of the body that the record of a large one refers to.
--- @inline
local function large_size(record)
  return #record >= FIXED + REFERENCE and struct.unpack('>I4', record, #record - REFERENCE + 1) or 0
end

-- The reference to an offloaded body that a record ends with, or nil. Messages that merge have none.
--- @inline
local function offloaded_reference(record)
  local first, at, reference = string.byte(record, 1) or 0, FIXED + 1, nil
  if first >= CODED and first < CODED_END and first % HEADERS < MERGES then
    if first > CODED then -- it has a time or headers
      at = at + (first % 2 == TIMED and 6 or 0) + (first % MERGES >= EXPIRES and 6 or 0)
      if first % 32 >= HEADERS and #record > at then
        at = at + 2 + struct.unpack('>I2', record, at)
      end
    end
    if string.byte(record, at) == OFFLOADED then
      reference = string.sub(record, at + 1)
    end
  end
  return reference
end

-- Note in the slot that it has offloaded bodies, if one of these records has: ids and records, in turn. Return whether.
local function note_offloaded(new_records)
  for i = 2, #new_records, 2 do
    local reference = offloaded_reference(new_records[i])
    if reference then
      redis.call('HINCRBY', slot, 'offloaded', 0) -- nothing where it is there
      return true
    end
  end
  return false
end

-- Remove records, with the large bodies that they refer to, and leave the references of the offloaded ones, unless the messages
-- were `moved` to another slot. Every write here frees memory, until records were removed.
local function drop_records(ids, moved)
  local names, gone = {}, {}
  local chunk, large, offloaded, released = unpack(redis.call('HMGET', slot, 'chunk', 'large', 'offloaded', 'released'))
  if large or offloaded then
    redis.call('HLEN', bodies) -- a wrong type shows before anything is written
    local page = tonumber(chunk or 1)
    for from = 1, #ids, page do
      local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + page - 1)))
      for i = 1, #batch do
        local record = batch[i] or ''
        local has_body = is_large(record)
        if has_body then
          local name = body_name(ids[from + i - 1], record)
          names[#names + 1] = name
        elseif offloaded and not moved then
          local reference = offloaded_reference(record)
          gone[#gone + 1] = reference
        end
      end
    end
  end
  redis.call('HDEL', records, unpack(ids))
  if #names > 0 then
    redis.call('HDEL', bodies, unpack(names))
    if redis.call('HINCRBY', slot, 'large', -#names) <= 0 then
      redis.call('HDEL', slot, 'large')
      if not offloaded then
        redis.call('UNLINK', bodies) -- with what a send has left that failed after its bodies were written
      end
    end
  end
  if #gone > 0 then
    local first = redis.call('HINCRBY', slot, 'offloaded', #gone) - #gone
    if tonumber(released or 0) > first then -- written for a slot that was deleted, by a process that was late
      redis.call('HSET', slot, 'released', first)
    end
    for i = 1, #gone do
      redis.call('HSET', bodies, 'gone:' .. first + i, gone[i])
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
    local has_body = is_large(own)
    local name = body_name(member, rest)
    names[i] = has_body and name
    any = any or names[i]
  end
  return any and names
end

-- Remove those of these bodies that no record refers to: their messages were not stored, or are settled.
local function drop_unused(names)
  for i = 1, names and #names or 0 do
    local name = names[i]
    if name then
      local member = string.sub(name, 1, -9)
      local record = redis.call('HGET', records, member) or ''
      local has_body = is_large(record)
      local its_name = body_name(member, record)
      if not has_body or its_name ~= name then
        redis.call('HDEL', bodies, name)
      end
    end
  end
end
