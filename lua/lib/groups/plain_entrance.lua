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

-- Return the score of a message, the entry of its group, and two new values of the slot: the number
-- of its last lane and of its last group. The message goes out, or is held behind other messages.
-- Return nil as the score if the entry is not plain.
--   text: the entry, or false; most: how many messages of the group may be out
--   vtime, lane, made: virtual time, last lane and last group of the slot
--   step: of score_step
--- @inline
local function plain_entrance(text, most, vtime, lane, made, id, priority, step)
  local next_made, next_number = text and made or made + 1, lane
  local entry, tag = entry_with_one_more(text, most, vtime, next_made, id, priority)
  if entry then
    local out_score = score_text(priority, 0.5 - (tag - tag % 1) * step)
    return out_score, entry, lane, next_made
  end
  if not text then
    return nil, nil, lane, made
  end
  local high, middle, low = string.byte(text, LANE_AT, LANE_AT + 2) -- the largest held priority
  if high + middle + low == 0 then
    next_number = next_lane(lane)
    if not next_number then
      return nil, nil, lane, made
    end
  end
  local score
  score, entry = held_entry(text, next_number, id, priority)
  if not score then
    next_number = lane
  end
  return score, entry, next_number, made
end
