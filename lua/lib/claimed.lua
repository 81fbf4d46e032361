-- claimed: what stands at KEYS[i]: the state of a claim, its owner, the time; nothing where there is none.
local function claimed(i)
  local value = redis.call('GET', KEYS[i])
  if not value then
    return nil
  end
  local state, owner, since = string.match(value, '^(%l+) (%S+) (%d+)$')
  if state ~= 'consuming' and state ~= 'consumed' then
    fail('CLAIM', i) -- the place, not the key: its name holds a caller's text
  end
  return state, owner, tonumber(since)
end

-- owners: how many claims are asked about. Their owners begin at ARGV[first], `each` arguments for each claim.
local function owners(first, each)
  local n = #KEYS
  if n > 1000 or #ARGV ~= first - 1 + n * each then
    fail('ARG', 'count')
  end
  for i = first, first + n - 1 do
    if #ARGV[i] > 100 or not string.find(ARGV[i], '^%S+$') then
      fail('ARG', 'owner')
    end
  end
  return n
end
