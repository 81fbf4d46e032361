-- Let a plain message into its group, by the text of the group's entry.
--- @needs store
--- @include "lib/groups/group_alone"
--- @include "lib/scores/score_text"

-- Return the number of the next lane if that lane is empty, else nil.
--- @inline
local function next_lane(lane)
  local next = (lane + 1) % NEAR_LANES
  local low = lane_score(next, PRIORITY_END - 1, 0)
  local high = lane_score(next, 0, LANE_PLACES - 1)
  local is_free = #redis.call('ZRANGEBYSCORE', store, low, high, 'LIMIT', 0, 1) == 0
  return is_free and next or nil
end

-- Return the entry of a group with one more message out, and the tag of that message. Return nil if
-- the message is to be held, or the group is not plain. `made`: how many
-- groups the slot has made.
--- @inline
local function entry_with_one_more(text, most, vtime, made, id, priority)
  local entry, tag
  if vtime >= GROUPS_RESTART then
    return nil
  elseif not text then
    entry, tag = first_entry(made, vtime, id, priority, most)
  elseif most > 1 then
    entry, tag = fuller_entry(text, most, vtime)
  end
  return entry, tag
end

-- Return the score of a message and the new entry of its group. The message goes out, or is held
-- behind other messages. Return nil as the score if the entry is not plain.
--   text: the entry, or false; most: how many messages of the group may be out
--   last: table with `lane` and `made`, the last lane and the last group of the slot, which this
--     function changes, and with `vtime`, the virtual time
--   step: of score_step
--- @inline
local function plain_entrance(text, most, last, id, priority, step)
  local made, number, score = text and last.made or last.made + 1, last.lane, nil
  local entry, tag = entry_with_one_more(text, most, last.vtime, made, id, priority)
  if entry then
    local out_score = score_text(priority, 0.5 - (tag - tag % 1) * step)
    last.made = made
    return out_score, entry
  end
  if not text then
    return nil, nil
  end
  local high, middle, low = string.byte(text, LANE_AT, LANE_AT + 2) -- the largest held priority
  if high + middle + low == 0 then
    number = next_lane(number)
    if not number then
      return nil, nil
    end
  end
  score, entry = held_entry(text, number, id, priority)
  if score then
    last.lane = number
  end
  return score, entry
end
