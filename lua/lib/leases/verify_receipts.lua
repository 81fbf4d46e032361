-- Receipts of deliveries.
--- @needs prepare
--- @include "lib/check"

-- Find the deliveries that the caller still holds, among the n ids from ARGV[from] on. The receipts
-- are at the same positions behind the ids. Returns the ids held, each once; a letter for every id,
-- 1 held or 0; the positions of the ids held; and the scores at all positions.
local function verify_receipts(from, n)
  if n < 1 or n > 1000 or n % 1 ~= 0 then
    fail('ARG', 'count')
  end
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + n - 1))
  local ids, letters, positions, seen = {}, {}, {}, {}
  local m, receipts = 0, from + n - 1
  for i = 1, n do
    local id, score, receipt = ARGV[from + i - 1], scores[i], ARGV[receipts + i]
    -- Mostly the texts are equal; where the server writes the number another way, its value
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
