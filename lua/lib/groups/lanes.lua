-- Lanes: where the held messages of a group are in the StoreQueue. lib/groups/groups describes
-- them.
--- @needs slot store
--- @include "lib/check"
--- @include "lib/groups/group_entries"
--- @include "lib/member"

-- Return the score of a place in a lane. Few scripts call this often, so it is not inline.
local function score_of_place(lane, priority, place)
  return lane_score(lane, priority, place)
end

-- Return the range of scores of a lane, or of one of its priorities.
local function lane_range(lane, priority)
  return score_of_place(lane, priority or PRIORITY_END - 1, 0),
    score_of_place(lane, priority or 0, LANE_PLACES - 1)
end

-- Split a score below 0 into lane, priority and place.
--
-- frexp returns the exponent of the double plus 1, and a number from 0.5 to 1 with the fraction.
-- Each multiplication moves the next bits of the fraction before the point, and `% 1` takes the
-- bits behind it. For example, lane 2050 has the exponent 1, and the first 11 bits are 2.
local function held_place(score)
  local half, exponent = math.frexp(-score)
  local lane_bits = (2 * half - 1) * EXPONENT_LANES
  local priority_bits = lane_bits % 1 * PRIORITY_END
  local place = LANE_PLACES - 1 - priority_bits % 1 * LANE_PLACES
  local lane = (exponent - 1) * EXPONENT_LANES + math.floor(lane_bits)
  return lane, math.floor(priority_bits), place
end

-- Return whether a lane has no message.
local function is_empty(lane)
  local low, high = lane_range(lane)
  return #redis.call('ZRANGEBYSCORE', store, low, high, 'LIMIT', 0, 1) == 0
end

-- Return the number of an empty lane, and note that it is used.
local function free_lane(groups)
  local lane = (groups.lane + 1) % NEAR_LANES
  for _ = 1, LANE_TRIES do
    if not groups.used_lanes[lane] and is_empty(lane) then
      groups.lane, groups.used_lanes[lane] = lane, true
      return lane
    end
    lane = (lane + LANE_STEP) % LANES
  end
  fail('LANES', slot)
end

-- Return the numbers of the lanes of an entry, the oldest first.
local function lanes_of(entry)
  local lanes = {}
  for at = 1, #entry.others, LANE_BYTES do
    lanes[#lanes + 1] = (struct.unpack('>I3', entry.others, at))
  end
  if entry.lane_priority > 0 then
    lanes[#lanes + 1] = entry.lane
  end
  return lanes
end

-- Append the first `most` messages of a lane and their priorities. `largest`: an upper bound of the
-- lane's priorities.
local function read_lane(lane, largest, most, ids, priorities)
  local before = #ids
  local low, last = lane_range(lane, largest)
  local members = redis.call('ZRANGEBYSCORE', store, low, last, 'LIMIT', 0, most)
  for i = 1, #members do
    ids[before + i], priorities[before + i] = members[i], largest
  end
  if #members == most then
    return
  end
  local _, high = lane_range(lane)
  local page = redis.call('ZRANGEBYSCORE', store, '(' .. last, high, 'WITHSCORES', 'LIMIT', 0,
    most - #members)
  for i = 1, #page, 2 do
    local _, priority = held_place(tonumber(page[i + 1]))
    ids[#ids + 1], priorities[#priorities + 1] = page[i], priority
  end
end

-- Return the first held messages of a group, in order, and their priorities: at most `most` of each
-- lane. Remove empty older lanes from the entry.
local function first_held(groups, entry, most)
  local lanes, ids, priorities, older = lanes_of(entry), {}, {}, {}
  for i = 1, #lanes do
    local before = #ids
    read_lane(lanes[i], entry.lane_priority, most, ids, priorities)
    if i < #lanes and #ids > before then
      older[#older + 1] = struct.pack('>I3', lanes[i])
    end
  end
  entry.others = table.concat(older)
  if #lanes == 1 then
    return ids, priorities
  end
  local order, sorted_ids, sorted_priorities = {}, {}, {}
  for i = 1, #ids do
    order[i] = i
  end
  table.sort(order, function(a, b)
    return priorities[a] > priorities[b] or priorities[a] == priorities[b] and a < b
  end)
  for i = 1, #ids do
    sorted_ids[i], sorted_priorities[i] = ids[order[i]], priorities[order[i]]
  end
  return sorted_ids, sorted_priorities
end

-- Note in an entry that no message is held.
local function clear_lane(entry)
  entry.lane_priority, entry.lane, entry.place, entry.others = 0, 0, 0, ''
  entry.front, entry.flags = '', entry.flags % MORE
end

-- Set the front of an entry from the result of first_held, beginning at position `from`.
local function set_front(entry, ids, priorities, from)
  local priority, last = priorities[from], from - 1
  if not priority then
    clear_lane(entry)
    return
  end
  while last < from + FRONT_MOST - 1 and priorities[last + 1] == priority do
    last = last + 1
  end
  entry.lane_priority, entry.front = priority, table.concat(ids, '', from, last)
  entry.flags = entry.flags % MORE + (#ids > last and MORE or 0)
end

-- Read the front of a group again, after a message left its lane or moved in it.
local function look_up_front(groups, entry)
  local ids, priorities = first_held(groups, entry, FRONT_MOST + 1)
  set_front(entry, ids, priorities, 1)
end

-- Return the lane and the place before all held messages of a priority. A redriven dead letter gets
-- the place behind earlier redriven dead letters.
local function place_before(groups, entry, priority, redriven)
  local lane = #entry.others > 0 and struct.unpack('>I3', entry.others) or entry.lane
  local low, high = lane_range(lane, priority)
  local place = groups.firsts[low]
  if not place then
    local found, _
    if redriven then
      high = score_of_place(lane, priority, REDRIVEN_END - 1)
      found = redis.call('ZREVRANGEBYSCORE', store, high, low, 'WITHSCORES', 'LIMIT', 0, 1)
    else
      found = redis.call('ZRANGEBYSCORE', store, low, high, 'WITHSCORES', 'LIMIT', 0, 1)
    end
    place = redriven and REDRIVEN_FIRST or LANE_FIRST
    if found[2] then
      _, _, place = held_place(tonumber(found[2]))
    end
  end
  if redriven then
    place = math.min(place + 1, REDRIVEN_END - 1)
  else
    place = math.max(0, place - 1)
  end
  groups.firsts[low] = place
  return lane, place
end

-- Return the next place in the lane of an entry. If the lane is full, the entry gets a new lane.
local function next_place(groups, entry)
  if entry.place >= LANE_PLACES - 1 then
    entry.others = entry.others .. struct.pack('>I3', entry.lane)
    entry.lane, entry.place = free_lane(groups), LANE_FIRST
  end
  entry.place = entry.place + 1
  return entry.lane, entry.place - 1
end

-- Note in the front of an entry that a message is held, behind all others of its priority.
-- `first`: before them; 'redriven': the front is looked up when it is needed.
local function note_held(entry, id, priority, first)
  local largest, front = entry.lane_priority, entry.front
  if priority > largest then
    front = id
  elseif priority == largest and first == 'redriven' then
    front = ''
  elseif priority == largest and first then
    front = id .. front
  elseif priority == largest and entry.flags < MORE then
    front = front .. id
  end
  local is_more = entry.flags >= MORE or #front > FRONT_MOST * MEMBER or #front == 0
    or priority ~= largest and largest > 0
  entry.lane_priority = math.max(priority, largest)
  entry.front = string.sub(front, 1, FRONT_MOST * MEMBER)
  entry.flags = entry.flags % MORE + (is_more and MORE or 0)
end
