--[[
Reading and writing parts of a record. Its Python twin is rmq/kernel/core/record.py.

  byte 1      codec * 32 + flags: 1 timed, 2 expires, 4 merges, 8 collects, 16 headers
  bytes 2-4   priority, 0 for a timed message without one
  bytes 5-8   low 32 bits of the slot's acceptance number
  then, in this order and only where flagged: due (6 bytes), expiry (6), merge key (2 + n), headers (2 + n).
  The rest is the body, which no script reads.
]]
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
