-- The fraction of a timed score: deliveries left (5 bits), and whether the record is to be asked for a
-- priority when the time has come (1 bit).
local function timed_score(due, left, ask)
  return due + (left * 2 + ask) / 64
end

local function timed_fraction(score)
  local bits = (score % 1) * 64
  return math.floor(bits / 2), bits % 2
end
