--[[
The numbers of audited messages, and which of them are open.

One zset has the numbers of all producers that are not accounted for, as ranges. All scores are 0,
so the members are in the order of their text:

  <producer>:<last>:<first>:<since>      numbers first .. last, and when they were reported, epoch
                                         ms
  <producer>:~:<first>:<heard>:<sent>    all numbers from first on, when the producer reported last,
                                         and up to which number its messages are accepted

All numbers of a producer below its lowest `first` are accounted for. Numbers that follow each other
are one range, so the zset grows with disorder, not with the length of the queue.
]]
--- @needs slot records audit
--- @include "lib/records/envelope"

-- Split a text `<producer, 10 hex digits>.<number>` into producer and number. Return nothing if the
-- text has another form.
local function parse_number(text)
  local producer, number = string.match(text, '^(%x+)%.(%d+)$')
  if producer and #producer == 10 and #number < 16 then
    return producer, tonumber(number)
  end
end

-- Return producer and number that rmq.Audit put on a message, in the first header of its record.
-- The headers are not unpacked.
local function number_of(record)
  local at
  if record then
    at = headers_at(record)
  end
  if not at then
    return
  end
  -- Skip the size of the headers and the size of their map.
  at = at + (string.byte(record, at + 2) == LARGE_MAP and 5 or 3)
  if string.sub(record, at, at + 9) ~= NUMBER_HEADER then
    return
  end
  local size = (string.byte(record, at + 10) or FIXED_STRING) - FIXED_STRING
  return parse_number(string.sub(record, at + 11, at + 10 + size))
end

-- Format the member for the open numbers first .. last.
local function range_member(producer, first, last, since)
  return string.format('%s:%015.0f:%015.0f:%013.0f', producer, last, first, since)
end

-- Format the member for all numbers from `first` on.
local function future_member(producer, first, heard, sent)
  return string.format('%s:~:%015.0f:%013.0f:%015.0f', producer, first, heard, sent)
end

-- Split a member into producer, first, last or nil, since or heard, and sent or nil.
local function parse_member(member)
  local producer, last, first, since, sent =
    string.match(member, '^(%x+):([%d~]+):(%d+):(%d+):?(%d*)$')
  if not producer then
    return
  end
  return producer, tonumber(first), tonumber(last), tonumber(since), tonumber(sent)
end

-- Remove first .. last from the open numbers of a producer, and return how many of them were open.
-- An unknown producer has no open numbers. At most as many ranges are read as there are numbers.
local function close_range(producer, first, last, now)
  local low_end = '[' .. producer .. ':' .. string.format('%015.0f', first)
  local high_end = '[' .. producer .. ':~~'
  local members = redis.call('ZRANGEBYLEX', audit, low_end, high_end, 'LIMIT', 0, last - first + 1)
  local closed = 0
  for m = 1, #members do
    local _, low, high, since, sent = parse_member(members[m])
    if not low or low > last then
      break
    end
    closed = closed + math.min(last, high or last) - math.max(first, low) + 1
    redis.call('ZREM', audit, members[m])
    if low < first then
      redis.call('ZADD', audit, 0, range_member(producer, low, first - 1, high and since or now))
    end
    if not high then
      redis.call('ZADD', audit, 0, future_member(producer, math.max(low, last + 1), since, sent))
    elseif high > last then
      redis.call('ZADD', audit, 0, range_member(producer, last + 1, high, since))
    end
  end
  return closed
end

-- Add the numbers of a list to `numbers`, which lists the producers and has the numbers of each
-- under its name. `read`: number_of for a list of records, parse_number for a list of texts.
local function add_numbers(list, read, numbers)
  for i = 1, #list do
    local producer, number = read(list[i])
    if producer then
      if not numbers[producer] then
        numbers[producer] = {}
        numbers[#numbers + 1] = producer
      end
      table.insert(numbers[producer], number)
    end
  end
  return numbers
end

-- Return the numbers of messages. Their records are read `chunk` at a time: as many as fit in
-- 4 MiB.
local function read_numbers(ids, chunk)
  local numbers = {}
  for from = 1, #ids, chunk do
    local page = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + chunk - 1)))
    add_numbers(page, number_of, numbers)
  end
  return numbers
end

-- Account for the numbers of messages that leave the slot for good, and add those that were open to
-- a counter of the slot. The first write needs no memory, so it may come before the messages are
-- removed.
local function account_for(counter, numbers, now)
  local closed = 0
  redis.call('ZCARD', audit) -- notices a wrong type, whether anything is numbered or not
  for p = 1, #numbers do
    local of_producer, first = numbers[numbers[p]], 1
    table.sort(of_producer)
    for i = 1, #of_producer do
      if i == #of_producer or of_producer[i + 1] > of_producer[i] + 1 then
        closed = closed + close_range(numbers[p], of_producer[first], of_producer[i], now)
        first = i + 1
      end
    end
  end
  if closed > 0 then
    redis.call('HINCRBY', slot, counter, closed)
  end
end
