-- What a group's entry is made of, and what lib/groups and lib/group_alone have in common.
--- @include "lib/score_ranges"
local UNIT, ROUND_PART = 64, 0.6180339887498949 -- of virtual time in a round; places of groups in it are that far apart
local GROUPS_RESTART = 1073741824 -- a quarter of what the scores of the largest priorities can order
local LANES, LANE_STEP, LANE_TRIES = 2097152, 1296573, 100 -- 2^21; prime to that
local LANE_FIRST = 2147483648 -- the place of the first message in a lane: 2^31, so that there is room before it
local LANE_BYTES = 10 -- of one that is not the first of its group: priority, lane, place of the next message
local UNGROUPED_MOST = 1000 -- messages without a group that are out
local FRONT_MOST = 4 -- members
local SINGLE, PAUSED_GROUP, HELD_BY_DEAD, MORE = 1, 2, 4, 8 -- flags of an entry; MORE: the first lane has more than the front
-- An entry: flags, finish, weight, the member that is out (or how many are, in two bytes), its priority; of the first lane priority
-- (0: none), number and place of the next message; sizes of what follows: the share's name, the front. Then the other lanes.
local GROUP_ENTRY, GROUP_ENTRY_BYTES = '>BdBc13I3I3I3I4BB', 38
local LANE_AT, NO_LANE = 27, '\0\0\0' -- where the priority of the first lane stands, and that of none
local NOBODY = '\0\0\0\0\0\0\0\0\0\0\0\0\0' -- in place of a member: none is out
local GROUP_HEADER, HEADER_BYTES = '\169rmq-group', 10 -- as msgpack has it, and the one that rmq.Audit adds

-- The tag in the score of a message that waits in a priority.
local function tag_of(score)
  local priority = math.floor(score)
  local _, exponent = math.frexp(priority)
  return (0.5 - (score - priority)) / math.ldexp(1, exponent - 53)
end

-- Move the virtual time of the slot on to the tag of a message that was taken, by its score.
local function note_taken(slot, score)
  if score >= PRIORITY_MIN and score < PRIORITY_END then
    local tag = tag_of(score)
    if tag > tonumber(redis.call('HGET', slot, 'vtime') or 0) then
      redis.call('HSET', slot, 'vtime', string.format('%.0f', tag))
    end
  end
end
