--[[
What most messages of groups need, worked out on the text of an entry: lib/groups/groups does the same and all that is unusual, a
weight or a share, an older lane, a group that is stopped, a larger priority. Scripts of one message use these alone;
lib/groups/groups begins with them.
]]
--- @include "lib/bounds"
--- @include "lib/groups/group_entries"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"

-- The group of a message without a time, expiry or merge key, which has the default weight and no share; else nil. `at`: where its
-- headers begin in `text`.
--- @inline
local function plain_group(flags, text, at)
  local kind, name = string.byte(text, at + 13), nil
  if flags % (2 * HEADERS) == HEADERS and kind and kind > 160 and kind < 192 and string.byte(text, at + 14) ~= 1
      and string.sub(text, at + 3, at + 12) == GROUP_HEADER then
    name = string.sub(text, at + 14, at + kind - 147)
  end
  return name
end

-- The (entry, tag) of a group whose first message goes out; `made`: how many groups the slot has had, with this one; `most`: how
-- many messages of it may be out.
--- @inline
local function first_entry(made, vtime, id, priority, most)
  local tag, entry = vtime + UNIT * (1 + made * ROUND_PART % 1), nil
  if most == 1 then
    entry = struct.pack(GROUP_ENTRY, SINGLE, tag + UNIT, 1, id, priority, 0, 0, 0, 0, 0)
  else
    entry = struct.pack(GROUP_ENTRY, 0, tag + UNIT, 1, ONE_OUT, 0, 0, 0, 0, 0, 0)
  end
  return entry, tag
end

-- The (entry, tag) of a group in which so many messages may be out, of which one more goes out; nil where it is not so plain.
--- @inline
local function fuller_entry(text, most, vtime)
  local flags, finish, weight, member, _, lane_priority, _, _, share = struct.unpack(GROUP_ENTRY, text)
  local count, entry, tag = struct.unpack('>I2', member), nil, vtime
  if flags == 0 and lane_priority == 0 and share == 0 and weight == 1 and count < most then
    if finish > vtime then
      tag = finish - finish % 1
    end
    entry = struct.pack(GROUP_ENTRY, 0, math.max(finish, vtime - UNIT) + UNIT, 1, struct.pack('>I2', count + 1) .. NO_BYTES, 0, 0,
      0, 0, 0, 0)
  end
  return entry, tag
end

-- The (score, entry) of a group where a message is held behind the others; nil where lib/groups/groups has to see to it.
-- `new_lane`: the number of a lane that nothing is in, for an entry that has none.
--- @inline
local function held_entry(text, new_lane, id, priority)
  local flags, finish, weight, member, head, lane_priority, lane, place, share, front = struct.unpack(GROUP_ENTRY, text)
  local in_front, score, entry = string.sub(text, GROUP_ENTRY_BYTES + 1), nil, nil
  if lane_priority == 0 then
    lane_priority, lane, place = priority, new_lane, LANE_FIRST
  end
  if flags % MORE <= SINGLE and share == 0 and weight == 1 and front == #in_front
      and (flags % 2 == 0 or member ~= NOBODY and priority <= head) and priority <= lane_priority and place < LANE_PLACES - 1 then
    if flags < MORE and front < FRONT_MOST * MEMBER and priority == lane_priority then
      in_front = in_front .. id
    elseif flags < MORE then
      flags = flags + MORE
    end
    score = lane_score(lane, priority, place)
    entry = struct.pack(GROUP_ENTRY, flags, finish, 1, member, head, lane_priority, lane, place + 1, 0, #in_front) .. in_front
  end
  return score, entry
end

-- What follows where a message of a group that is out leaves: (true, or false where lib/groups/groups has to see to it; the
-- entry of its group, nil where nothing is left of it; the next one, or nil; its priority and tag).
--- @inline
local function entry_without(text, vtime, id)
  local flags, finish, weight, member, head, priority, lane, place, share, front = struct.unpack(GROUP_ENTRY, text)
  local done, entry, following, tag = false, nil, nil, vtime
  if (member == id and flags % MORE == SINGLE or flags % MORE == 0) and share == 0 and #text == GROUP_ENTRY_BYTES + front
      and vtime < GROUPS_RESTART then
    local count = flags % 2 == 0 and struct.unpack('>I2', member) or 1
    if priority == 0 then
      done = true
      if count > 1 then
        entry = struct.pack(GROUP_ENTRY, flags, finish, weight, struct.pack('>I2', count - 1) .. NO_BYTES, 0, 0, 0, 0, 0, 0)
      end
    elseif front > 0 then
      local in_front, step, late = string.sub(text, GROUP_ENTRY_BYTES + MEMBER + 1), UNIT / weight, vtime - UNIT
      done, following = true, string.sub(text, GROUP_ENTRY_BYTES + 1, GROUP_ENTRY_BYTES + MEMBER)
      head = priority
      if flags % 2 == SINGLE then
        member = following
      end
      local latest = vtime + (count + 2) * step
      if finish > latest then
        finish = latest
      end
      if finish > vtime then
        tag = finish - finish % 1
      end
      if front == MEMBER and flags < MORE then
        priority, lane, place = 0, 0, 0
      end
      finish = (finish > late and finish or late) + step
      entry = struct.pack(GROUP_ENTRY, flags, finish, weight, member, flags % 2 * head, priority, lane, place, 0,
        front - MEMBER) .. in_front
    end
  end
  return done, entry, following, head, tag
end
