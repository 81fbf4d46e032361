-- Reading the envelope of a record: the parts without a fixed position. lib/records/record
-- describes them.
--- @include "lib/records/record_bytes"
-- First header of an audited message (lib/audit), in msgpack.
local NUMBER_HEADER = '\169rmq-audit'
-- First bytes in msgpack: of a text of less than 32 bytes, to which its size is added; of a text of
-- up to 255 and up to 65535 bytes, before its size; of a map with more than 15 entries.
local FIXED_STRING, LONG_STRING, LONGER_STRING, LARGE_MAP = 160, 217, 218, 222

-- Return the position of the headers of a record, which begin with their size; nil if it has no
-- headers.
--- @inline
local function headers_at(record)
  local head = #record > FIXED and string.byte(record, 1) or 0
  if head % (2 * HEADERS) < HEADERS then
    return nil
  end
  local at = FIXED + 1 + (head % (2 * TIMED) >= TIMED and TIME_BYTES or 0)
    + (head % (2 * EXPIRES) >= EXPIRES and TIME_BYTES or 0)
  if head % (2 * MERGES) >= MERGES then
    local a, b = string.byte(record, at, at + 1)
    return b and at + 2 + a * 256 + b
  end
  return at
end

-- Return due, expiry and merge key of a record, each or nil; nothing if the record is cut short.
local function envelope(record)
  local head, size = string.byte(record, 1), #record
  if size < FIXED then
    return
  end
  local at, due, expiry, key = FIXED + 1, nil, nil, nil
  if head % (2 * TIMED) >= TIMED then
    if size < at + 5 then
      return
    end
    due, at = read48(record, at), at + TIME_BYTES
  end
  if head % (2 * EXPIRES) >= EXPIRES then
    if size < at + 5 then
      return
    end
    expiry, at = read48(record, at), at + TIME_BYTES
  end
  if head % (2 * MERGES) >= MERGES then
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
