--[[
Reading and writing the envelope of a record. Its Python twin is rmq/core/record.py.

  byte 1      codec * 32 + flags: 1 timed, 2 expires, 4 merges, 8 collects, 16 headers
  bytes 2-4   priority, 0 for a timed message without one
  bytes 5-8   low 32 bits of the slot's acceptance number
  then, in this order and only where flagged: due (6 bytes), expiry (6), merge key (2 + n), headers (2 + n).
  The rest is the body, which no script reads.
]]
local TIMED, EXPIRES, MERGES, COLLECTS, HEADERS = 1, 2, 4, 8, 16

local function flagged(head, flag)
  return math.floor(head % (flag * 2) / flag) == 1
end

local function priority_of(record)
  local _, a, b, c = string.byte(record, 1, 4)
  return a * 65536 + b * 256 + c
end

local function read48(text, at)
  local a, b, c, d, e, f = string.byte(text, at, at + 5)
  return ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
end

local function write48(n)
  local high = math.floor(n / 4294967296)
  return struct.pack('>I2I4', high, n - high * 4294967296)
end

-- The (due or nil, expiry or nil, merge key or nil) of a record; nothing where it is cut short.
local function envelope(record)
  local head, size = string.byte(record, 1), #record
  if size < 8 then
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

-- The (producer, number) of a text `<producer, 10 hex digits>.<number>`; nothing where it has another form.
local function parse_number(text)
  local producer, number = string.match(text, '^(%x+)%.(%d+)$')
  if producer and #producer == 10 and #number < 16 then
    return producer, tonumber(number)
  end
end

-- The (producer, number) that rmq.Audit put on a message: the first header of its record, `rmq-audit`. The headers are
-- not unpacked.
local NUMBER_HEADER = '\169rmq-audit'
local function number_of(record)
  local head = record and #record > 8 and string.byte(record, 1) or 0
  if not flagged(head, HEADERS) then
    return
  end
  local at = 9 + (flagged(head, TIMED) and 6 or 0) + (flagged(head, EXPIRES) and 6 or 0)
  if flagged(head, MERGES) then
    local a, b = string.byte(record, at, at + 1)
    if not b then
      return
    end
    at = at + 2 + a * 256 + b
  end
  at = at + (string.byte(record, at + 2) == 222 and 5 or 3) -- past the size of the headers and that of their map
  if string.sub(record, at, at + 9) ~= NUMBER_HEADER then
    return
  end
  local size = (string.byte(record, at + 10) or 160) - 160
  return parse_number(string.sub(record, at + 11, at + 10 + size))
end
