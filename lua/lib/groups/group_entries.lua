-- The layout of a group's entry, and functions that lib/groups/groups and lib/groups/group_alone
-- share.
--- @needs slot
--- @include "lib/records/envelope"
--- @include "lib/results/keep_header"
--- @include "lib/scores/score_ranges"
local UNIT = 64 -- virtual time of a round
-- Part of a round between the first messages of two new groups. Multiples of the golden ratio,
-- modulo 1, are spread evenly for any number of new groups.
local ROUND_PART = 0.6180339887498949
local GROUPS_RESTART = 1073741824 -- a quarter of the tags that the largest priorities can order
local EXPONENT_LANES = 2048 -- lanes whose scores have the same exponent
local LANES = 2095104 -- 1023 exponents
local LANE_STEP, LANE_TRIES = 1294849, 100 -- the step is a prime number
local NEAR_LANES = 262144 -- lanes that are tried first: Redis reads and writes their scores faster
local LANE_PLACES = 2097152 -- 2^21 of each priority of a lane
local LANE_FIRST = 1048576 -- the place of the first message in a lane: there is room before it
-- Places of dead letters that are redriven to a stopped group: before LANE_FIRST, in the order in
-- which they are redriven.
local REDRIVEN_FIRST, REDRIVEN_END = 1024, 1047552
local LANE_BYTES = 3 -- of the number of an older lane in an entry
local PLACE_PARTS = 4503599627370496 -- 2^52: steps in the fraction of a double
local UNGROUPED_MOST = 1000 -- messages without a group that are out
local FRONT_MOST = 8 -- members
-- Flags of an entry. SINGLE: one message is out.
local SINGLE, PAUSED_GROUP, STOPPED_BY_DEAD = 1, 2, 4
local MORE = 8 -- the last flag: more is held than the front
-- An entry:
--
--   1       B     flags
--   2-9     d     finish: virtual time at which the group's next message begins
--   10      B     weight
--   11-23   c13   the member that is out; or in two bytes, how many are out
--   24-26   I3    priority of that member
--   27-29   I3    the largest priority that is held; 0: nothing is held
--   30-32   I3    the lane
--   33-36   I4    the next place in the lane
--   37      B     size of the share's name
--   38      B     size of the front
--   39 ..         the share's name, the front, and the numbers of older lanes, the oldest first
local GROUP_ENTRY, GROUP_ENTRY_BYTES = '>BdBc13I3I3I3I4BB', 38
local MEMBER_AT = 11 -- position in an entry of the member that is out
local LANE_AT, NO_LANE = 27, '\0\0\0' -- position of the largest held priority; nothing is held
local NO_BYTES = '\0\0\0\0\0\0\0\0\0\0\0' -- behind how many are out
local ONE_OUT = '\0\1\0\0\0\0\0\0\0\0\0\0\0'
local GROUP_ENDED = '' -- instead of an entry: nothing is left of the group
local NOBODY = '\0\0\0\0\0\0\0\0\0\0\0\0\0' -- in place of a member: none is out
local GROUP_HEADER = '\169rmq-group' -- in msgpack
local HEADER_BYTES = 10 -- of GROUP_HEADER, NUMBER_HEADER and BATCH_HEADER

-- Return the score of a place in a lane, as text. lib/groups/groups describes it.
--- @inline
local function lane_score(lane, priority, place)
  local parts = priority * LANE_PLACES + LANE_PLACES - 1 - place
  return string.format('%.17g',
    -math.ldexp(1 + lane % EXPONENT_LANES / EXPONENT_LANES + parts / PLACE_PARTS,
      math.floor(lane / EXPONENT_LANES)))
end

-- Return the difference between the scores of two neighboring places in a lane.
--- @inline
local function place_step(lane)
  return math.ldexp(1 / PLACE_PARTS, math.floor(lane / EXPONENT_LANES))
end

-- Return the tag in the score of a message that waits in a priority.
--- @inline
local function tag_of(score)
  local priority = math.floor(score)
  local _, exponent = math.frexp(priority)
  return (0.5 - (score - priority)) / math.ldexp(1, exponent - 53)
end

-- Advance the virtual time of the slot to the tag in the score of a received message.
--- @inline
local function note_taken(score)
  if score >= PRIORITY_MIN and score < PRIORITY_END then
    local tag = tag_of(score)
    if tag > tonumber(redis.call('HGET', slot, 'vtime') or 0) then
      redis.call('HSET', slot, 'vtime', string.format('%.0f', tag))
    end
  end
end

-- Split the value of the header into group, weight, and share or nil. rmq/kernel/core/groups.py
-- writes it: a name, or \1, weight, \1, share, \1 and the name.
local function parse_group(text)
  local weight, share, name = string.match(text, '^\1(%d+)\1([^\1]*)\1(.*)$')
  return name, tonumber(weight), share ~= '' and share or nil
end

-- Return group, weight, and share or nil of a message whose headers begin at `at`; '' and 1 if it
-- has no group. Only the headers of rmq.Audit, of a kept result and of a batch are before the
-- group's.
local function group_at(text, at)
  at = at + 3 -- past the size of the headers and the size of their map
  if string.byte(text, at - 1) == LARGE_MAP then
    at = at + 2
  end
  if string.sub(text, at, at + HEADER_BYTES - 1) == NUMBER_HEADER then
    local value_byte = string.byte(text, at + HEADER_BYTES) or FIXED_STRING
    at = at + HEADER_BYTES + 1 + value_byte - FIXED_STRING
  end
  if string.sub(text, at, at + HEADER_BYTES - 2) == KEEP_HEADER then -- a byte shorter
    local value_byte = string.byte(text, at + HEADER_BYTES - 1) or FIXED_STRING
    at = at + HEADER_BYTES + value_byte - FIXED_STRING
    if string.sub(text, at, at + HEADER_BYTES - 1) == BATCH_HEADER then
      local kind, long_size = string.byte(text, at + HEADER_BYTES, at + HEADER_BYTES + 1)
      local size = (kind or FIXED_STRING) - FIXED_STRING
      if kind == LONG_STRING then
        size = 1 + (long_size or 0)
      end
      at = at + HEADER_BYTES + 1 + size
    end
  end
  if string.sub(text, at, at + HEADER_BYTES - 1) ~= GROUP_HEADER then
    return '', 1
  end
  at = at + HEADER_BYTES
  local name
  local kind, size, low = string.byte(text, at, at + 2)
  if not size then -- the record is cut short
    return '', 1
  end
  if kind == LONGER_STRING then
    name = string.sub(text, at + 3, at + 2 + size * 256 + (low or 0))
  elseif kind == LONG_STRING then
    name = string.sub(text, at + 2, at + 1 + size)
  else
    name = string.sub(text, at + 1, at + kind - FIXED_STRING)
  end
  if string.byte(name, 1) == 1 then
    return parse_group(name)
  end
  return name, 1
end

-- Return the same for a record.
local function group_of(record)
  local flags = string.byte(record or '', 1) or 0
  if flags % 32 < HEADERS then
    return '', 1
  end
  local at = FIXED + 1
  if flags % 16 > 0 then
    at = headers_at(record)
  end
  if not at then
    return '', 1
  end
  return group_at(record, at)
end

-- Return the same for the first byte of a record and the part behind its acceptance number.
local function group_of_rest(flags, rest)
  if flags % 32 < HEADERS then
    return '', 1
  end
  local at = 1 + (flags % 2 >= TIMED and 6 or 0) + (flags % 4 >= EXPIRES and 6 or 0)
  if flags % (2 * MERGES) >= MERGES then
    local a, b = string.byte(rest, at, at + 1)
    at = at + 2 + (b and a * 256 + b or 0)
  end
  return group_at(rest, at)
end
