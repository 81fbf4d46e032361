--[[
The layout of a record. lib/records/record_bytes reads and writes its parts. The Python twin is
rmq/kernel/core/record.py.

  byte 1      codec * 32 + flags: 1 timed, 2 expires, 4 merges, 8 collects, 16 headers
  bytes 2-4   priority, 0 for a timed message without one
  bytes 5-8   low 32 bits of the slot's acceptance number
  then, in this order and only if flagged: due (6 bytes), expiry (6), merge key (2 + n),
  headers (2 + n).
  The rest is the body, which no script reads.
]]
local TIMED, EXPIRES, MERGES, COLLECTS, HEADERS = 1, 2, 4, 8, 16
-- First byte of a record of codec 3: the first byte of its body says how to read it.
local CODED, CODED_END = 96, 128
local OFFLOADED = 67 -- that byte of a body in a store
local HEAD, FIXED = 4, 8 -- bytes of the head, which a sender gives, and of all that each record has
local ACCEPTED_CYCLE = 4294967296 -- the acceptance number modulo this is in a record

-- Return the flags and the priority in the head of a record.
--- @inline
local function split_head(head)
  local flags, a, b, c = string.byte(head, 1, HEAD)
  return flags, a * 65536 + b * 256 + c
end
