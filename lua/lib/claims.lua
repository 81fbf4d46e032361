-- Claims: `consuming <owner> <since>` or `consumed <owner> <at>`, times in epoch ms.
--- @needs all_keys
--- @include "lib/check"

-- Read the value of each claim, false if the key is missing. A claim of a wrong type stops the
-- script.
local function read_claims()
  local values, absent = redis.call('MGET', unpack(all_keys)), {}
  for i = 1, #all_keys do
    if not values[i] then
      absent[#absent + 1] = all_keys[i]
    end
  end
  if #absent > 0 and redis.call('EXISTS', unpack(absent)) > 0 then
    for a = 1, #absent do
      redis.call('GET', absent[a]) -- raises the error of a wrong type, which MGET does not
    end
  end
  return values
end

-- Split the i-th value into state, owner and time.
local function parse_claim(value, i)
  local state, owner, since = string.match(value, '^(%l+) (%S+) (%d+)$')
  if state ~= 'consuming' and state ~= 'consumed' then
    fail('CLAIM', i) -- the position, because the name of the key has text of a caller
  end
  return state, owner, tonumber(since)
end

-- Return whether the i-th value is a claim that this owner holds and has not finished.
local function is_consuming(value, owner, i)
  local held = 'consuming ' .. owner .. ' '
  if not value or string.sub(value, 1, #held) == held then
    return value
  end
  parse_claim(value, i) -- stops the script if the value is no claim
end

-- Check the owners, which begin at ARGV[first], and return the number of claims in the call. The
-- call has `each` arguments for each claim.
local function count_claims(first, each)
  local n = #all_keys
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
