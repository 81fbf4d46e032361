-- Scores as text. Redis formats a number argument slowly, with 17 digits.

-- Return the difference between two neighboring scores with this integer part. lib/scores/score
-- says why.
--- @inline
local function score_step(integer)
  local _, exponent = math.frexp(integer)
  return math.ldexp(1, exponent - 53)
end

-- Return the score of arrival `order`. After more arrivals than the fraction can order, scores are
-- equal and go by id (tied_messages in lib/take/pick_messages). `step`: of score_step.
--- @inline
local function score_at(integer, step, order)
  local score = integer + 0.5 - order * step
  if score < integer then
    score = integer
  elseif score >= integer + 1 then
    score = integer + 1 - step
  end
  return score
end

-- Return a score as text. 16 decimals are exact: their error is far below half of the smallest
-- step, 2^-48.
--- @inline
local function score_text(integer, fraction)
  return string.format('%d.%016d', integer, fraction * 1e16 + 0.5)
end
