-- Reading and writing parts of a record.
--- @include "lib/bounds"
--- @include "lib/records/record"

-- Return the priority in the head of a record; 0 for a timed message without a priority.
local function priority_of(head)
  local _, priority = split_head(head)
  return priority
end

-- Return the number in six bytes of a text.
local function read48(text, at)
  local a, b, c, d, e, f = string.byte(text, at, at + 5)
  return ((((a * 256 + b) * 256 + c) * 256 + d) * 256 + e) * 256 + f
end

-- Return the six bytes of a number.
local function write48(n)
  local high = math.floor(n / WORD)
  return struct.pack('>I2I4', high, n - high * WORD)
end
