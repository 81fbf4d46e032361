--[[
Large bodies are in a hash of their own, so that they need not pass through scripts. The client
writes a body just before the script that stores its record, in one transaction. It reads the body
with a plain command. The Python twin is rmq/kernel/core/record.py.

The record of a large body has the flag 8 without the flag 4. It ends with a reference instead of a
body: the size (4 bytes), and 8 random bytes of its sender. The name of the body is the member and
these 8 bytes, so two senders of one id never write the same field. The field `large` of the slot
counts the bodies.

An offloaded body is an object in a store outside of Redis. Its record has a reference to it: a body
of codec 3 that begins with the byte OFFLOADED. The script that removes the record for good leaves
the reference in `bodies`, as `gone:<number>`: a tombstone. A process that has access to the store
removes the object and then the tombstone. The field `offloaded` of the slot is the number of the
newest tombstone, 0 before the first. A slot without that field has never had an offloaded body, and
its scripts read no records for this. The field `released` is the number up to which the objects are
removed.
]]
--- @needs slot records bodies
--- @include "lib/records/record"
local REFERENCE = 12 -- bytes: size and name

-- Return whether a record refers to a large body. `record`: a record, its head, or ''.
--- @inline
local function is_large(record)
  local flags = (string.byte(record, 1) or 0) % 16
  return flags >= COLLECTS and flags < COLLECTS + MERGES
end

-- Return the name of the large body of a record. `record`: a record, or its end.
--- @inline
local function body_name(member, record)
  return member .. string.sub(record, -8)
end

-- Return the size of the large body of a record.
--- @inline
local function large_size(record)
  local at = #record - REFERENCE + 1
  return at > FIXED and struct.unpack('>I4', record, at) or 0
end

-- Return the reference to an offloaded body at the end of a record, or nil. Messages that merge
-- have no offloaded bodies.
--- @inline
local function offloaded_reference(record)
  local first, at = string.byte(record, 1) or 0, FIXED + 1
  if first < CODED or first >= CODED_END or first % HEADERS >= MERGES then
    return nil
  end
  if first > CODED then -- it has a time or headers
    at = at + (first % 2 == TIMED and 6 or 0) + (first % MERGES >= EXPIRES and 6 or 0)
    if first % (2 * HEADERS) >= HEADERS and #record > at then
      at = at + 2 + struct.unpack('>I2', record, at)
    end
  end
  return string.byte(record, at) == OFFLOADED and string.sub(record, at + 1) or nil
end

-- Read records, `page` at a time. Return the names of their large bodies, and the references to
-- their offloaded bodies.
--- @inline
local function find_bodies(ids, page)
  local own, references = {}, {}
  for from = 1, #ids, page do
    local last = math.min(#ids, from + page - 1)
    local batch = redis.call('HMGET', records, unpack(ids, from, last))
    for i = 1, #batch do
      local record = batch[i] or ''
      local has_body = is_large(record)
      if has_body then
        local name = body_name(ids[from + i - 1], record)
        own[#own + 1] = name
      else
        local reference = offloaded_reference(record)
        references[#references + 1] = reference
      end
    end
  end
  return own, references
end

-- Remove large bodies. `keeps_hash`: whether the hash may have other fields after the last body.
--- @inline
local function drop_bodies(names, keeps_hash)
  redis.call('HDEL', bodies, unpack(names))
  if redis.call('HINCRBY', slot, 'large', -#names) > 0 then
    return
  end
  redis.call('HDEL', slot, 'large')
  if not keeps_hash then
    redis.call('UNLINK', bodies) -- a send may have failed after it had written its bodies
  end
end

-- Leave tombstones. `released`: the field of the slot.
--- @inline
local function leave_tombstones(references, released)
  local first = redis.call('HINCRBY', slot, 'offloaded', #references) - #references
  if tonumber(released or 0) > first then -- written late, for a slot that had been deleted
    redis.call('HSET', slot, 'released', first)
  end
  for i = 1, #references do
    redis.call('HSET', bodies, 'gone:' .. first + i, references[i])
  end
end

-- Remove records with their large bodies. Leave tombstones for their offloaded bodies, unless the
-- messages were `moved` to another slot. Until the records are removed, each write frees memory.
local function drop_records(ids, moved)
  local chunk, large, offloaded, released =
    unpack(redis.call('HMGET', slot, 'chunk', 'large', 'offloaded', 'released'))
  local names, gone = {}, {}
  if large or offloaded then
    redis.call('HLEN', bodies) -- a wrong type shows before the first write
    names, gone = find_bodies(ids, tonumber(chunk or 1))
  end
  redis.call('HDEL', records, unpack(ids))
  if #names > 0 then
    drop_bodies(names, offloaded)
  end
  if offloaded and not moved and #gone > 0 then
    leave_tombstones(gone, released)
  end
end

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
