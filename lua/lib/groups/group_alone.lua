--[[
Functions for plain messages of groups. They compute with the text of a group's entry and create no
table. A message is plain if it has the default weight and no share. An entry is plain if its group
is not stopped, has no share and no older lane, and no larger priority has to go first.

lib/groups/groups does the same for all messages, and uses these functions for plain messages.
Scripts with a single message use only these functions.
]]
--- @include "lib/groups/group_entries"
--- @include "lib/member"
--- @include "lib/records/record"
local FIXED_STRING_END = 192 -- behind the first bytes of short texts in msgpack
local MARK = 1 -- first byte of the header's value if it also has a weight or a share

-- Return the name of a message's group, or nil if the message is not plain or has no group. The
-- message has no time, expiry or merge key. `flags`: the first byte of its record; `at`: where its
-- headers begin in `text`.
--- @inline
local function plain_group(flags, text, at)
  -- The first byte says how long the text of the value is.
  local value_byte, next_byte = string.byte(text, at + 13, at + 14)
  if flags % (2 * HEADERS) ~= HEADERS or not value_byte then
    return nil
  end
  if value_byte <= FIXED_STRING or value_byte >= FIXED_STRING_END or next_byte == MARK then
    return nil
  end
  if string.sub(text, at + 3, at + 12) ~= GROUP_HEADER then
    return nil
  end
  return string.sub(text, at + 14, at + 13 + value_byte - FIXED_STRING)
end

-- Return the entry and the tag of a group whose first message goes out. `made`: how many groups the
-- slot has had, with this group; `most`: how many messages of the group may be out.
--- @inline
local function first_entry(made, vtime, id, priority, most)
  local tag = vtime + UNIT * (1 + made * ROUND_PART % 1)
  local entry
  if most == 1 then
    entry = struct.pack(GROUP_ENTRY, SINGLE, tag + UNIT, 1, id, priority, 0, 0, 0, 0, 0)
  else
    entry = struct.pack(GROUP_ENTRY, 0, tag + UNIT, 1, ONE_OUT, 0, 0, 0, 0, 0, 0)
  end
  return entry, tag
end

-- Return the entry and the tag of a group of which another message goes out; nil if the entry is
-- not plain or `most` messages are out.
--- @inline
local function fuller_entry(text, most, vtime)
  local flags, finish, weight, member, _, lane_priority, _, _, share =
    struct.unpack(GROUP_ENTRY, text)
  if flags ~= 0 or lane_priority ~= 0 or share ~= 0 or weight ~= 1 then
    return nil, nil
  end
  local count = struct.unpack('>I2', member)
  if count >= most then
    return nil, nil
  end
  local tag = finish > vtime and finish - finish % 1 or vtime
  local next_finish = math.max(finish, vtime - UNIT) + UNIT
  local out = struct.pack('>I2', count + 1) .. NO_BYTES
  return struct.pack(GROUP_ENTRY, 0, next_finish, 1, out, 0, 0, 0, 0, 0, 0), tag
end

-- Return the score and the entry of a group of which another message is held; nil if the entry is
-- not plain. `new_lane`: the number of an empty lane, for an entry without one.
--- @inline
local function held_entry(text, new_lane, id, priority)
  local flags, finish, weight, member, out_priority, lane_priority, lane, place, share, front =
    struct.unpack(GROUP_ENTRY, text)
  local in_front = string.sub(text, GROUP_ENTRY_BYTES + 1)
  if flags % MORE > SINGLE or share ~= 0 or weight ~= 1 or front ~= #in_front then
    return nil, nil
  end
  if flags % 2 == SINGLE and (member == NOBODY or priority > out_priority) then
    return nil, nil -- the message may have to go first
  end
  if lane_priority == 0 then
    lane_priority, lane, place = priority, new_lane, LANE_FIRST
  end
  if priority > lane_priority or place >= LANE_PLACES - 1 then
    return nil, nil
  end
  if flags < MORE and front < FRONT_MOST * MEMBER and priority == lane_priority then
    in_front = in_front .. id
  elseif flags < MORE then
    flags = flags + MORE
  end
  local score = lane_score(lane, priority, place)
  local entry = struct.pack(GROUP_ENTRY, flags, finish, 1, member, out_priority, lane_priority,
    lane, place + 1, 0, #in_front) .. in_front
  return score, entry
end

-- Compute how a group continues after a message that was out has left. Returns the group's entry,
-- which is GROUP_ENDED if nothing is left of the group, and nil if the entry is not plain; then
-- the id of the message that goes out next, or nil, its priority and its tag.
--- @inline
local function entry_without(text, vtime, id)
  local flags, finish, weight, member, out_priority, priority, lane, place, share, front =
    struct.unpack(GROUP_ENTRY, text)
  if flags % MORE > SINGLE or flags % 2 == SINGLE and member ~= id then
    return nil
  end
  if share ~= 0 or #text ~= GROUP_ENTRY_BYTES + front or vtime >= GROUPS_RESTART then
    return nil
  end
  local count = flags % 2 == 0 and struct.unpack('>I2', member) or 1
  if priority == 0 and count <= 1 then
    return GROUP_ENDED
  end
  if priority == 0 then -- nothing is held
    local out = struct.pack('>I2', count - 1) .. NO_BYTES
    return struct.pack(GROUP_ENTRY, flags, finish, weight, out, 0, 0, 0, 0, 0, 0)
  end
  if front == 0 then
    return nil -- lib/groups/groups searches for the next message
  end
  local next_id = string.sub(text, GROUP_ENTRY_BYTES + 1, GROUP_ENTRY_BYTES + MEMBER)
  local in_front = string.sub(text, GROUP_ENTRY_BYTES + MEMBER + 1)
  local next_priority, step, oldest_start = priority, UNIT / weight, vtime - UNIT
  if flags % 2 == SINGLE then
    member, out_priority = next_id, priority
  else
    out_priority = 0
  end
  local latest = vtime + (count + 2) * step
  if finish > latest then
    finish = latest
  end
  local tag = finish > vtime and finish - finish % 1 or vtime
  if front == MEMBER and flags < MORE then
    priority, lane, place = 0, 0, 0 -- no message is held any more
  end
  finish = (finish > oldest_start and finish or oldest_start) + step
  local entry = struct.pack(GROUP_ENTRY, flags, finish, weight, member, out_priority, priority,
    lane, place, 0, front - MEMBER) .. in_front
  return entry, next_id, next_priority, tag
end
