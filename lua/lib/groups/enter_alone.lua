-- Let a single new message into its group, for the short form of send. For all other messages see
-- lib/groups/enter_groups.
--- @needs slot store
--- @include "lib/groups/group_alone"
--- @include "lib/scores/score_text"
local MINUS = 45 -- first byte of the score of a held message

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

-- Return the score of the message, the entry of its group, and two new values of the slot: the
-- number of its last lane and of its last group. Return nil if the long form is needed. `setting`:
-- the field `groups` of the slot.
--- @inline
local function enter_alone(setting, name, id, priority)
  local text, vtime, lane, made =
    unpack(redis.call('HMGET', slot, '/' .. name, 'vtime', 'lane', 'groups_made'))
  vtime, lane, made = tonumber(vtime or 0), tonumber(lane or 0), tonumber(made or 0)
  made = text and made or made + 1
  local most = tonumber(string.match(setting, '^%d+'))
  local entry, tag = entry_with_one_more(text, most, vtime, made, id, priority)
  if entry then
    local step = score_step(priority)
    local score = score_text(priority, 0.5 - (tag - tag % 1) * step)
    return score, entry, lane, made
  end
  if not text then
    return nil
  end
  if string.sub(text, LANE_AT, LANE_AT + 2) == NO_LANE then
    lane = next_lane(lane)
    if not lane then
      return nil
    end
  end
  local score
  score, entry = held_entry(text, lane, id, priority)
  return score, entry, lane, made
end
