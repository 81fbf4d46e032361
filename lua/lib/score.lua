-- StoreQueue scores, the twin of rmq/core/score.py.
--
--   1 .. 16             a retried message: deliveries left; larger first
--   17 .. 1 048 575     a priority message; larger first
--   1 048 576 .. 1e12   a timed message that was handed back, and is due; smaller first
--   >= 1e12             a timed message: due, epoch ms; earlier first
--
-- Inside one integer the fraction runs from .5 downwards with every arrival, so that the larger score
-- is the older message; what is handed back unworked goes in front, above .5. One step is the smallest
-- that a double can tell apart at that size: 2^-33 for the largest priorities, 2^-46 for priority 100.
--- @include "lib/families"

local steps = {}

local function ordered_score(integer, order)
  local step = steps[integer]
  if not step then
    local _, exponent = math.frexp(integer)
    step = math.ldexp(1, exponent - 53)
    steps[integer] = step
  end
  local score = integer + 0.5 - order * step
  if score < integer then
    return integer -- more arrivals than the fraction can order: they tie, and go by id, see lib/ties
  end
  if score >= integer + 1 then
    return integer + 1 - step
  end
  return score
end

-- front_score: in front of its line: of a priority, or of all that is due where `home` is a time. `order` falls with
-- every message that is handed back.
local function front_score(home, order)
  return home < PRIORITY_END and ordered_score(home, order) or HANDED_BACK + order
end

-- ordered_text: the same score as digits. Redis turns a number argument into 17 digits the slow way; 16
-- decimals are exact here, since their error is far below half of the smallest step, 2^-48.
local function ordered_text(integer, order)
  local fraction = ordered_score(integer, order) - integer
  return string.format('%d.%016d', integer, math.floor(fraction * 1e16 + 0.5))
end
