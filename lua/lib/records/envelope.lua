-- Reading the envelope of a record: its flags, and the parts that have no fixed place. lib/records/record describes them.
--- @include "lib/records/record_bytes"

-- Whether the first byte of a record has a flag.
local function flagged(head, flag)
  return math.floor(head % (flag * 2) / flag) == 1
end

-- Where the headers of a record begin, with their size; nil where it has none.
local function headers_at(record)
  local head = #record > FIXED and string.byte(record, 1) or 0
  if not flagged(head, HEADERS) then
    return nil
  end
  local at = 9 + (flagged(head, TIMED) and 6 or 0) + (flagged(head, EXPIRES) and 6 or 0)
  if flagged(head, MERGES) then
    local a, b = string.byte(record, at, at + 1)
    return b and at + 2 + a * 256 + b
  end
  return at
end

-- The (due or nil, expiry or nil, merge key or nil) of a record; nothing where it is cut short.
local function envelope(record)
  local head, size = string.byte(record, 1), #record
  if size < FIXED then
    return
  end
  local at, due, expiry, key = 9, nil, nil, nil
  if flagged(head, TIMED) then
    if size < at + 5 then
      return
    end
    due, at = read48(record, at), at + 6
  end
  if flagged(head, EXPIRES) then
    if size < at + 5 then
      return
    end
    expiry, at = read48(record, at), at + 6
  end
  if flagged(head, MERGES) then
    if size < at + 1 then
      return
    end
    local key_size = struct.unpack('>I2', record, at)
    if size < at + 1 + key_size then
      return
    end
    key = string.sub(record, at + 2, at + 1 + key_size)
  end
  return due, expiry, key
end
