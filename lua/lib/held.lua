-- held: which of the ids ARGV[from .. from+n-1] the caller still holds: those whose PrepareQueue score
-- equals the receipt ARGV[from+n ..] beside it. Returns the ids held (each once), a letter for every id
-- asked (1 held, 0 not), the places of those held among the asked, and the scores as they stand.
local function held(prepare, from, n)
  if n < 1 or n > 1000 or n % 1 ~= 0 then
    fail('ARG', 'count')
  end
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + n - 1))
  local ids, letters, places, seen = {}, {}, {}, {}
  local m, receipts = 0, from + n - 1
  for i = 1, n do
    local id, score, receipt = ARGV[from + i - 1], scores[i], ARGV[receipts + i]
    -- Mostly the texts are equal; where the server writes the number another way, its value decides.
    if score and not seen[id] and (score == receipt or tonumber(score) == tonumber(receipt)) then
      m = m + 1
      seen[id] = true
      ids[m], places[m], letters[i] = id, i, '1'
    else
      letters[i] = '0'
    end
  end
  return ids, table.concat(letters), places, scores
end
