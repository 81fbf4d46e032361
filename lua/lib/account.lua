-- account: the numbers that are not accounted for yet, of every producer that numbers its messages, stand in
-- one zset as ranges. All scores are 0, so that its members are in the order of their text:
--
--   <producer>:<last>:<first>:<since>        numbers first .. last; since when this is known, epoch ms
--   <producer>:~:<first>:<heard>:<sent>      all numbers from first on; when the producer was heard of, and up
--                                            to which number it has told that its messages were accepted
--
-- The lowest `first` less one is the low-water mark of a producer. A range is as many numbers as are waiting
-- in a row, so the zset grows with disorder, not with the length of the queue.
local function range_of(producer, first, last, since)
  return string.format('%s:%015.0f:%015.0f:%013.0f', producer, last, first, since)
end

local function rest_of(producer, first, heard, sent)
  return string.format('%s:~:%015.0f:%013.0f:%015.0f', producer, first, heard, sent)
end

-- read_range: (producer, first, last or nil, since, sent or nil) of a member.
local function read_range(member)
  local producer, last, first, since, sent = string.match(member, '^(%x+):([%d~]+):(%d+):(%d+):?(%d*)$')
  if not producer then
    return
  end
  return producer, tonumber(first), tonumber(last), tonumber(since), tonumber(sent)
end

-- account: takes first .. last out of a producer's open numbers; how many of them were. A producer that is not
-- there has none open. Touches at most as many ranges as there are numbers.
local function account(audit, producer, first, last, now)
  local members = redis.call('ZRANGEBYLEX', audit, '[' .. producer .. ':' .. string.format('%015.0f', first),
    '[' .. producer .. ':~~', 'LIMIT', 0, last - first + 1)
  local taken = 0
  for m = 1, #members do
    local _, low, high, since, sent = read_range(members[m])
    if not low or low > last then
      break
    end
    taken = taken + math.min(last, high or last) - math.max(first, low) + 1
    redis.call('ZREM', audit, members[m])
    if low < first then
      redis.call('ZADD', audit, 0, range_of(producer, low, first - 1, high and since or now))
    end
    if not high then
      redis.call('ZADD', audit, 0, rest_of(producer, math.max(low, last + 1), since, sent))
    elseif high > last then
      redis.call('ZADD', audit, 0, range_of(producer, last + 1, high, since))
    end
  end
  return taken
end
