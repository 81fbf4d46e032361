-- A run: members whose stamps follow each other. A caller names the first member and the count.
--- @include "lib/check"
--- @include "lib/member"

local byte_strings -- the table of ready_bytes, which several functions use

-- Return a table that has, by value, the last byte of each number of a run as a string. Joining
-- such strings costs half as much as packing each number. `first`: the first number.
local function ready_bytes(first, count)
  byte_strings = byte_strings or {}
  for number = first, first + math.min(count, 256) - 1 do
    local i = number % 256
    byte_strings[i] = byte_strings[i] or string.char(i)
  end
  return byte_strings
end

-- Return the members of a run: `first`, and the members with the next count - 1 stamps.
local function run_members(first, count)
  if #first ~= MEMBER then
    fail('ARG', 'member')
  end
  local ids, high, low = { first }, struct.unpack('>I4I4', first)
  if count == 1 then
    return ids
  end
  local bytes, tail, stem = ready_bytes(low, count), string.sub(first, 9), nil
  for i = 1, count do
    local last = low % 256
    if last == 0 or i == 1 then
      stem = string.sub(struct.pack('>I4I4', high + math.floor(low / WORD), low % WORD), 1, 7)
    end
    ids[i] = stem .. bytes[last] .. tail
    low = low + 1
  end
  return ids
end

-- Append to the list of members, as a call without a head gives them, the head and the rest of each
-- message. `before`: place in `rests` before the first rest.
--- @inline
local function append_heads_and_rests(members, head, rests, before)
  local count = #members
  for i = 1, count do
    members[count + 2 * i - 1], members[count + 2 * i] = head, rests[before + i]
  end
end
