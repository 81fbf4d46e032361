-- The mark of a message that keeps its result: its first header, or the second after the number of
-- an audited message, is `rmq-keep`. The value is how long the result is kept, in s. Members of
-- batches have the letter b behind the number, which may be 0, and the next header is `rmq-batch`:
-- `<topic> <slot> <name> <id>`. The Python twins are keep_of and batch_of in
-- rmq/kernel/core/record.py.
--- @include "lib/records/envelope"
--- @include "lib/results/keep_header"
local KEEP_DIGITS = 9 -- of the value: 31 years
local MARK_MOST = 24 -- the mark ends at most so many bytes behind the first byte of the headers
local FIXED_MAP, FIXED_MAP_MOST = 128, 15 -- first byte of a small map minus its size; largest size

-- Return where the first header of a record is, and where the mark is if the record has one. `at`:
-- where its headers begin.
--- @inline
local function mark_place(record, at)
  local first = at + (string.byte(record, at + 2) == LARGE_MAP and 5 or 3) -- behind both sizes
  if string.sub(record, first, first + 9) ~= NUMBER_HEADER then
    return first, first
  end
  return first, first + 11 + (string.byte(record, first + 10) or FIXED_STRING) - FIXED_STRING
end

-- Start of the headers of the last record, its time, and whether it is a member of a batch.
local last_start, last_keep, last_is_member = nil, nil, false

-- Return for how long a message keeps its result, in ms, and whether it is a member of a batch; nil
-- without a mark. A member may have the time 0. Most messages of a call have the same mark, so a
-- second record with this start of the headers is not read again. `record`: a record, or false.
local function keep_of(record)
  local at
  if record then
    at = headers_at(record)
  end
  if not at then
    return nil
  end
  local start = string.sub(record, at, at + MARK_MOST)
  if start == last_start then
    return last_keep, last_is_member
  end
  local first, place = nil, nil
  first, place = mark_place(record, at)
  last_start, last_keep, last_is_member = first == place and start or nil, nil, false
  if string.sub(record, place, place + 8) ~= KEEP_HEADER then
    return nil
  end
  local high, low = string.byte(record, at, at + 1)
  local digits = (string.byte(record, place + 9) or FIXED_STRING) - FIXED_STRING
  local last = place + 9 + digits
  local number, member = string.match(string.sub(record, place + 10, last), '^(%d+)(b?)$')
  if number and #number <= KEEP_DIGITS and last <= math.min(at + 1 + high * 256 + low, #record) then
    last_keep, last_is_member = tonumber(number) * 1000, member == 'b'
  end
  return last_keep, last_is_member
end

-- Return the batch of a member: the value of its header, or nil if it cannot be read.
local function batch_of(record)
  local at, first, place = nil, nil, nil
  at = headers_at(record)
  first, place = mark_place(record, at)
  local header = place + 10 + (string.byte(record, place + 9) or FIXED_STRING) - FIXED_STRING
  if string.sub(record, header, header + 9) ~= BATCH_HEADER then
    return nil
  end
  local size = (string.byte(record, header + 10) or FIXED_STRING) - FIXED_STRING
  local text_at = header + 11
  if size == LONG_STRING - FIXED_STRING then
    size, text_at = string.byte(record, header + 11) or 0, header + 12
  end
  return string.sub(record, text_at, text_at + size - 1)
end

-- Return a record with the mark of another message. If its headers have no room, it is returned
-- unchanged. `body_at`: where the body begins.
local function with_mark(record, body_at, keep)
  local seconds = string.format('%d', keep / 1000)
  local mark = KEEP_HEADER .. string.char(FIXED_STRING + #seconds) .. seconds
  local at, first, place = nil, nil, nil
  at = headers_at(record)
  if not at then
    return string.char(string.byte(record, 1) + HEADERS) .. string.sub(record, 2, body_at - 1)
      .. struct.pack('>I2B', 1 + #mark, FIXED_MAP + 1) .. mark .. string.sub(record, body_at)
  end
  first, place = mark_place(record, at)
  local count = first == at + 5 and struct.unpack('>I2', record, at + 3)
    or string.byte(record, at + 2) - FIXED_MAP
  local map = string.char(FIXED_MAP + count + 1)
  if count >= FIXED_MAP_MOST then
    map = struct.pack('>BI2', LARGE_MAP, count + 1)
  end
  local headers = map .. string.sub(record, first, place - 1) .. mark
    .. string.sub(record, place, body_at - 1)
  if #headers >= 65536 then
    return record
  end
  return string.sub(record, 1, at - 1) .. struct.pack('>I2', #headers) .. headers
    .. string.sub(record, body_at)
end
