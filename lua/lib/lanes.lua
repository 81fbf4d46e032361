-- Lanes: where the held messages of a group are in the StoreQueue. lib/groups describes them.
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/group_entries"

-- The range of scores of a lane.
local function lane_range(lane)
  return string.format('%.0f', -(lane + 1) * WORD), string.format('(%.0f', -lane * WORD)
end

-- Whether nothing is in a lane.
local function is_empty(store, lane)
  local low, high = lane_range(lane)
  return #redis.call('ZRANGEBYSCORE', store, low, high, 'LIMIT', 0, 1) == 0
end

-- A lane that nothing is in.
local function free_lane(groups)
  local lane = groups.lane
  for try = 1, LANE_TRIES do
    lane = (lane + (try == 1 and 1 or LANE_STEP)) % LANES
    if not groups.fresh[lane] and is_empty(groups.store, lane) then
      groups.lane, groups.fresh[lane] = lane, true
      return lane
    end
  end
  fail('GROUPS', groups.slot)
end

-- The lanes of an entry as a list: of each its priority, number and next place.
local function lanes_of(entry)
  local lanes = {}
  if entry.lane_priority > 0 then
    lanes[1] = { entry.lane_priority, entry.lane, entry.place }
  end
  for at = 1, #entry.others, LANE_BYTES do
    lanes[#lanes + 1] = { struct.unpack('>I3I3I4', entry.others, at) }
  end
  return lanes
end

-- Give an entry these lanes. `keeps_front`: the first one is the one that it had.
local function set_lanes(entry, lanes, keeps_front)
  local first, others = lanes[1] or { 0, 0, 0 }, {}
  entry.lane_priority, entry.lane, entry.place = first[1], first[2], first[3]
  for i = 2, #lanes do
    others[#others + 1] = struct.pack('>I3I3I4', unpack(lanes[i]))
  end
  entry.others = table.concat(others)
  if not keeps_front then
    entry.front, entry.flags = '', entry.flags % MORE + (lanes[1] and MORE or 0)
  end
end

-- Forget the front of an entry, which is looked up when it is needed, and the lanes that nothing is in any more: another group may
-- get their numbers.
local function drop_front(groups, entry)
  local lanes, used = lanes_of(entry), {}
  for i = 1, #lanes do
    if not is_empty(groups.store, lanes[i][2]) then
      used[#used + 1] = lanes[i]
    end
  end
  set_lanes(entry, used)
end

-- A place before all that is in a lane; for a redriven dead letter, behind those that were redriven before it.
local function place_before(groups, number, redriven)
  local place = groups.fresh[number]
  if type(place) ~= 'number' then
    local low, high = lane_range(number)
    local found
    if redriven then
      local limit = string.format('(%.0f', REDRIVEN_END - (number + 1) * WORD)
      found = redis.call('ZREVRANGEBYSCORE', groups.store, limit, low, 'WITHSCORES', 'LIMIT', 0, 1)
    else
      found = redis.call('ZRANGEBYSCORE', groups.store, low, high, 'WITHSCORES', 'LIMIT', 0, 1)
    end
    place = found[2] and tonumber(found[2]) + (number + 1) * WORD
      or redriven and REDRIVEN_FIRST or LANE_FIRST
  end
  if redriven then
    place = math.min(place + 1, REDRIVEN_END - 1)
  else
    place = math.max(0, place - 1)
  end
  groups.fresh[number] = place
  return place
end

-- Hold a message where it is the first of its lane, or the lane has to be found.
local function hold_in_lane(groups, entry, id, priority, first)
  local lanes, at = lanes_of(entry), 1
  while lanes[at] and lanes[at][1] > priority do
    at = at + 1
  end
  -- A lane in which the places are used up is followed by another one.
  while not first and lanes[at + 1] and lanes[at + 1][1] == priority do
    at = at + 1
  end
  local lane = lanes[at]
  local has_lane = lane and lane[1] == priority
  if not has_lane or not first and lane[3] >= WORD - 1 then
    lane = { priority, free_lane(groups), LANE_FIRST }
    table.insert(lanes, has_lane and at + 1 or at, lane)
  end
  local place, number = lane[3], lane[2]
  if first then
    place = place_before(groups, number, first == 'redriven')
  else
    lane[3] = place + 1
  end
  local is_alone = #lanes == 1 and not has_lane
  set_lanes(entry, lanes, lanes[1] ~= lane or is_alone)
  if is_alone then
    entry.front, entry.flags = id, entry.flags % MORE
  end
  return place - (number + 1) * WORD
end
