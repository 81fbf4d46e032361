--[[
Scores of retries, priorities and messages that were given back. lib/scores/score_ranges says which
integers they have.

Retries and priorities: the fraction begins at .5 and falls by one step with every arrival, so the
larger score is the older message. A message that is given back goes to the front, above .5. A step
is the smallest difference that a double has at that size: 2^-33 for the largest priorities, 2^-46
for priority 100.
]]
--- @include "lib/scores/score_ranges"
--- @include "lib/scores/score_text"

local steps -- of scores, by integer part; lib/send/store_uniform also reads it

-- Return the score of arrival `order` of a priority, or of a retry.
local function ordered_score(integer, order)
  steps = steps or {}
  local step = steps[integer]
  if not step then
    step = score_step(integer)
    steps[integer] = step
  end
  local score = score_at(integer, step, order)
  return score
end

-- Return the same score as text.
local function ordered_text(integer, order)
  local fraction = ordered_score(integer, order) - integer
  local text = score_text(integer, fraction)
  return text
end

-- Return a score at the front of a priority, or of all due messages if `place` is a time. `order`:
-- a counter that falls with every message that is given back.
local function front_score(place, order)
  return place < PRIORITY_END and ordered_score(place, order) or GIVEN_BACK + order
end
