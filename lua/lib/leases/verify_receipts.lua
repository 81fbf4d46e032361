-- Checking the receipts of a call.
--- @needs prepare
--- @include "lib/check"

-- Find the valid receipts. ARGV has n ids from `from` on, and then their receipts in the same
-- order. Return the ids with a valid receipt, each once; a letter for every id, 1 valid or 0; the
-- positions of the valid ids; and the scores at all positions.
local function verify_receipts(from, n)
  if n < 1 or n > MOST or n % 1 ~= 0 then
    fail('ARG', 'count')
  end
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + n - 1))
  local ids, letters, positions, seen = {}, {}, {}, {}
  local m, receipts = 0, from + n - 1
  for i = 1, n do
    local id, score, receipt = ARGV[from + i - 1], scores[i], ARGV[receipts + i]
    -- Usually the texts are equal. If the server formats the number in another way, its value
    -- decides.
    if score and not seen[id] and (score == receipt or tonumber(score) == tonumber(receipt)) then
      m = m + 1
      seen[id] = true
      ids[m], positions[m], letters[i] = id, i, '1'
    else
      letters[i] = '0'
    end
  end
  return ids, table.concat(letters), positions, scores
end
