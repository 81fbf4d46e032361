--[[
Scores of retries, priorities and messages that were handed back. lib/scores/score_ranges says which integers they have.

Retries and priorities: the fraction begins at .5 and falls by one step with every arrival, so the larger score is the
older message. A message that is handed back goes to the front, above .5. A step is the smallest difference that a
double has at that size: 2^-33 for the largest priorities, 2^-46 for priority 100.
]]
--- @include "lib/scores/score_ranges"

local steps -- by integer part

-- The score of arrival `order` of a priority, or of a retry.
local function ordered_score(integer, order)
  steps = steps or {}
  local step = steps[integer]
  if not step then
    local _, exponent = math.frexp(integer)
    step = math.ldexp(1, exponent - 53)
    steps[integer] = step
  end
  local score = integer + 0.5 - order * step
  if score < integer then
    return integer -- more arrivals than the fraction can order: these tie and go by id, see pick_tied
  end
  if score >= integer + 1 then
    return integer + 1 - step
  end
  return score
end

-- The same score as digits. Redis turns a number argument into 17 digits the slow way; 16 decimals are exact here,
-- since their error is far below half of the smallest step, 2^-48.
local function ordered_text(integer, order)
  local fraction = ordered_score(integer, order) - integer
  return string.format('%d.%016d', integer, math.floor(fraction * 1e16 + 0.5))
end

-- A score at the front: of its priority, or of all due messages where `place` is a time. `order` falls with every
-- message that is handed back.
local function front_score(place, order)
  return place < PRIORITY_END and ordered_score(place, order) or HANDED_BACK + order
end
