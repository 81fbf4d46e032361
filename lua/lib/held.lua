-- held: which of the ids ARGV[from .. from+n-1] the caller still holds: those whose PrepareQueue score
-- equals the receipt ARGV[from+n ..] beside it. Returns the ids held, once each, and a letter for every
-- id asked: 1 held, 0 not. Their places in ARGV come third.
local function held(prepare, from, n)
  if n < 1 or n > 1000 or n % 1 ~= 0 then
    fail('ARG', 'count')
  end
  local scores = redis.call('ZMSCORE', prepare, unpack(ARGV, from, from + n - 1))
  local ids, letters, places, seen = {}, {}, {}, {}
  local m = 0
  for i = 1, n do
    local id, score = ARGV[from + i - 1], scores[i]
    if score and tonumber(score) == tonumber(ARGV[from + n + i - 1]) and not seen[id] then
      m = m + 1
      seen[id] = true
      ids[m], places[m], letters[i] = id, i, '1'
    else
      letters[i] = '0'
    end
  end
  return ids, table.concat(letters), places, scores
end
