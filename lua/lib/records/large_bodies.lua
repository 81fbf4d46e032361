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
--- @include "lib/records/record"
local NAME_BYTES = 8 -- random bytes at the end of a reference
local REFERENCE = 12 -- bytes: size and name

-- Return whether a record refers to a large body. `record`: a record, its head, or ''.
--- @inline
local function is_large(record)
  local flags = (string.byte(record, 1) or 0) % HEADERS
  return flags >= COLLECTS and flags < COLLECTS + MERGES
end

-- Return the name of the large body of a record. `record`: a record, or its end.
--- @inline
local function body_name(member, record)
  return member .. string.sub(record, -NAME_BYTES)
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
    at = at + (first % 2 == TIMED and TIME_BYTES or 0)
      + (first % MERGES >= EXPIRES and TIME_BYTES or 0)
    if first % (2 * HEADERS) >= HEADERS and #record > at then
      at = at + 2 + struct.unpack('>I2', record, at)
    end
  end
  return string.byte(record, at) == OFFLOADED and string.sub(record, at + 1) or nil
end
