-- Let deliveries leave plain groups, for scripts that settle many deliveries.
--- @needs slot store
--- @include "lib/groups/group_alone"
--- @include "lib/scores/score_text"
--- @include "lib/writes"

-- Write what has changed: scores and ids of messages that go out, fields and texts of entries, and
-- fields of groups that have ended.
--- @inline
local function write_departures(move, set, gone)
  for from = 1, #move, UNPACKED do
    redis.call('ZADD', store, 'XX', unpack(move, from, math.min(#move, from + UNPACKED - 1)))
  end
  change_fields(slot, set, gone)
end

-- Return the fields of groups, each once, and the position of the first message of each group. The
-- third result has by name whether several messages leave the group.
--- @inline
local function group_fields(names)
  local fields, positions, is_other, count = {}, {}, {}, 0
  for i = 1, #names do
    local name = names[i]
    if is_other[name] == nil then
      count = count + 1
      fields[count], positions[count], is_other[name] = '/' .. name, i, false
    else
      is_other[name] = true
    end
  end
  return fields, positions, is_other
end

-- Return the text of an entry whose front is filled again from its lane, with one member more than
-- a front has: that message goes out next. Return the same text if the front is not empty, or few
-- messages of the largest held priority are left.
local function text_with_front(text)
  if #text ~= GROUP_ENTRY_BYTES or string.byte(text, 1) < MORE then
    return text
  end
  local priority, lane = struct.unpack('>I3I3', text, LANE_AT)
  local low = lane_score(lane, priority, 0)
  local high = lane_score(lane, priority, LANE_PLACES - 1)
  local members = redis.call('ZRANGEBYSCORE', store, low, high, 'LIMIT', 0, FRONT_MOST + 2)
  if #members < FRONT_MOST + 2 then
    return text -- lib/groups/groups also looks for other priorities
  end
  local front = table.concat(members, '', 1, FRONT_MOST + 1)
  return string.sub(text, 1, GROUP_ENTRY_BYTES - 1) .. string.char(#front) .. front
end

-- Let the only message that leaves a group leave it, and let the next message out. Return whether
-- any went out, and the positions of the messages for which nothing was done: their group is not
-- plain, or several of its messages leave. Return nil instead of all positions.
--   names: names of the groups, by position; vtime: virtual time of the slot
local function leave_plain_groups(names, ids, vtime)
  local string, struct = string, struct -- local variables are faster than global ones
  local fields, positions, is_other = group_fields(names)
  if 2 * #fields < #names then
    return false, nil -- lib/groups/groups computes once for all messages that leave a group
  end
  local texts, any_other = redis.call('HMGET', slot, unpack(fields)), #fields < #names
  local move, set, gone, moved, changed, last_priority, step = {}, {}, {}, 0, 0, 0, 0
  for n = 1, #fields do
    local text, i = texts[n], positions[n]
    if text and not is_other[names[i]] then
      text = text_with_front(text)
      local entry, next_id, priority, tag = entry_without(text, vtime, ids[i])
      if not entry then
        is_other[names[i]], any_other = true, true
      elseif entry == GROUP_ENDED then
        gone[#gone + 1] = fields[n]
      else
        set[changed + 1], set[changed + 2], changed = fields[n], entry, changed + 2
      end
      if next_id and priority ~= last_priority then
        step = score_step(priority)
        last_priority = priority
      end
      if next_id then
        local score = score_text(priority, 0.5 - tag * step)
        move[moved + 1], move[moved + 2], moved = score, next_id, moved + 2
      end
    end
  end
  write_departures(move, set, gone)
  local others = {}
  for i = 1, any_other and #names or 0 do
    if is_other[names[i]] then
      others[#others + 1] = i
    end
  end
  return moved > 0, others
end
