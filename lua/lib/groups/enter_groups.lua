-- Let messages into their groups: for scripts that store messages, or find that they are due.
--- @include "lib/groups/groups"

-- Read the groups of new messages and their entries. Return the state of the slot's groups, and
-- lists by position: names, weights and shares.
--   head: the head of all records; nil if each message has a head, in front of its rest
--   rests: list of the records' bytes after the acceptance number, at before + step, before + 2 *
--     step and so on
local function open_new(setting, head, rests, before, count, step)
  local groups, new = open_groups(setting), { names = {}, weights = {}, shares = {} }
  local names, weights, shares = new.names, new.weights, new.shares
  local flags, byte = string.byte(head or '', 1) or 0, string.byte
  restart_groups(groups)
  for i = 1, count do
    local rest = rests[before + step * i]
    if not head then
      flags = byte(rests[before + step * i - 1], 1) or 0
    end
    local name = plain_group(flags, rest, 1)
    if name then
      names[i], weights[i] = name, 1
    else
      names[i], weights[i], shares[i] = group_of_rest(flags, rest)
    end
  end
  load_groups(groups, names)
  return groups, new
end

-- Return two functions for new messages. The first lets a message into its group, by its position,
-- id and priority. The second writes all changes, and returns whether messages went out. For the
-- parameters see open_new.
local function entering_groups(setting, head, rests, before, count, step)
  local groups, new = open_new(setting, head, rests, before, count, step)
  return function(i, id, priority)
    enter_group(groups, new.names[i], new.weights[i], new.shares[i], id, priority)
  end, function()
    return write_groups(groups)
  end
end

-- Hold the messages from a position on that have the same group as the message before. They get the
-- next places in its lane: the scores of neighboring places differ by a step. Return the position
-- of the first message that enter_group must handle.
local function hold_same_group(groups, new, members, from, priority)
  local names, weights, name = new.names, new.weights, new.names[from]
  local entry = entry_in(groups, name)
  if entry.lane_priority ~= priority then
    return from -- nothing is held, or another priority is the largest
  end
  local add, weight, place, i = groups.add, entry.weight, entry.place, from
  local text = lane_score(entry.lane, priority, place)
  local step = place_step(entry.lane)
  local score, at = tonumber(text), #add
  while names[i] == name and weights[i] == weight and place < LANE_PLACES - 1 do
    add[at + 1], add[at + 2] = string.format('%.17g', score), members[i]
    score, at, place, i = score + step, at + 2, place + 1, i + 1
  end
  entry.place = place
  if entry.flags < MORE then
    local last = math.min(i - 1, from + FRONT_MOST - 1 - #entry.front / MEMBER)
    entry.front = entry.front .. table.concat(members, '', from, last)
    entry.flags = entry.flags + (last < i - 1 and MORE or 0)
  end
  touch(groups, name)
  return i
end

-- Let new messages with the same head and priority into their groups, and write all changes.
local function enter_all(setting, head, rests, before, members, priority)
  local groups, new = open_new(setting, head, rests, before, #members, 1)
  local names, i = new.names, 1
  while i <= #members do
    enter_group(groups, names[i], new.weights[i], new.shares[i], members[i], priority)
    i = i + 1
    if names[i] == names[i - 1] then
      i = hold_same_group(groups, new, members, i, priority)
    end
  end
  write_groups(groups)
end

-- Return two functions, as entering_groups does, for messages that are due, or with `are_dead` for
-- dead letters that are redriven. The first has the record, the id and the priority as parameters.
local function returning_groups(setting, are_dead)
  local groups = open_groups(setting)
  restart_groups(groups)
  return function(record, id, priority)
    if are_dead then
      redrive_group(groups, record, id, priority)
    else
      local name, weight, share = group_of(record)
      load_groups(groups, { name })
      return_group(groups, name, weight, share, id, priority)
    end
  end, function()
    return write_groups(groups)
  end
end
