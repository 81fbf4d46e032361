-- standing: the values at KEYS, false where there is none. Anything but strings there stops the script.
local function standing()
  local values, absent = redis.call('MGET', unpack(KEYS)), {}
  for i = 1, #KEYS do
    if not values[i] then
      absent[#absent + 1] = KEYS[i]
    end
  end
  if #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0 then
    for a = 1, #absent do
      redis.call('GET', absent[a]) -- refuses what MGET passes over
    end
  end
  return values
end

-- claimed: what the i-th value says: the state of a claim, its owner, the time.
local function claimed(value, i)
  local state, owner, since = string.match(value, '^(%l+) (%S+) (%d+)$')
  if state ~= 'consuming' and state ~= 'consumed' then
    fail('CLAIM', i) -- the place, not the key: its name holds a caller's text
  end
  return state, owner, tonumber(since)
end

-- consumes: whether the i-th value is a claim that this owner has and has not finished.
local function consumes(value, owner, i)
  local mine = 'consuming ' .. owner .. ' '
  if not value or string.sub(value, 1, #mine) == mine then
    return value
  end
  claimed(value, i)
end

-- owners: how many claims are asked about. Their owners begin at ARGV[first], `each` arguments for each claim.
local function owners(first, each)
  local n = #KEYS
  if n > 1000 or #ARGV ~= first - 1 + n * each then
    fail('ARG', 'count')
  end
  for i = first, first + n - 1 do
    if #ARGV[i] < 1 or #ARGV[i] > 100 then
      fail('ARG', 'owner')
    end
  end
  if string.find(table.concat(ARGV, '', first, first + n - 1), '%s') then
    fail('ARG', 'owner')
  end
  return n
end
