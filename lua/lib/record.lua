-- The record's envelope; lua/README.md draws it, rmq/core/record.py is its twin.
--
--   byte 1      codec * 32 + flags (1 timed, 2 expires, 4 merges, 8 collects, 16 headers)
--   bytes 2-4   priority, 0 for a timed message without one
--   bytes 5-8   low 32 bits of the slot's acceptance number
--   then, in this order and only where flagged: due (6 bytes), expiry (6), merge key (2 + n),
--   headers (2 + n); the rest is the body, which no script reads.
local TIMED, EXPIRES, MERGES, COLLECTS = 1, 2, 4, 8

local function flagged(head, flag)
  return math.floor(head % (flag * 2) / flag) == 1
end

--- @include "lib/head"
local function read48(text, at)
  local a, b, c, d, e, f = string.byte(text, at, at + 5)
  return ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
end

local function write48(n)
  local high = math.floor(n / 4294967296)
  return struct.pack('>I2I4', high, n - high * 4294967296)
end

-- envelope: (due or nil, expiry or nil, merge key or nil), or nothing when the record is cut short.
local function envelope(record)
  local head, whole_size = string.byte(record, 1), #record
  if whole_size < 8 then
    return
  end
  local at, due, expiry, key = 9, nil, nil, nil
  if flagged(head, TIMED) then
    if whole_size < at + 5 then
      return
    end
    due, at = read48(record, at), at + 6
  end
  if flagged(head, EXPIRES) then
    if whole_size < at + 5 then
      return
    end
    expiry, at = read48(record, at), at + 6
  end
  if flagged(head, MERGES) then
    if whole_size < at + 1 then
      return
    end
    local size = struct.unpack('>I2', record, at)
    if whole_size < at + 1 + size then
      return
    end
    key = string.sub(record, at + 2, at + 1 + size)
  end
  return due, expiry, key
end
