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

-- From this integer part on, 14 decimals of a score are exact: a step is at least 2^-46. A lower
-- score needs 16 decimals, since a step may be 2^-52.
local FEWER_DECIMALS = 64
local DECIMALS_14, DECIMALS_16 = 1e14, 1e16

-- Return a score as text, with as many decimals as are necessary: the append-only file has this
-- text for each message.
--- @inline
local function score_text(integer, fraction)
  if integer >= FEWER_DECIMALS then
    return string.format('%d.%014d', integer, fraction * DECIMALS_14 + 0.5)
  end
  return string.format('%d.%016d', integer, fraction * DECIMALS_16 + 0.5)
end
