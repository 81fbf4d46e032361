--[[
The layout of a record. lib/records/record_bytes reads and writes its parts. The Python twin is
rmq/kernel/core/record.py.

  byte 1      codec * CODEC_STEP + flags: 1 timed, 2 expires, 4 merges, 8 collects, 16 headers
  bytes 2-4   priority, 0 for a timed message without one
  bytes 5-8   low 32 bits of the slot's acceptance number
  then, in this order and only if flagged: due (6 bytes), expiry (6), merge key (2 + n),
  headers (2 + n)
  rest        the body, which no script reads
]]
local CODEC_STEP = 32
local TIMED, EXPIRES, MERGES, COLLECTS, HEADERS = 1, 2, 4, 8, 16
-- Range of the first bytes of records of codec 3. Then the first byte of the body says how to read
-- the body.
local CODED, CODED_END = 96, 128
local OFFLOADED = 67 -- first byte of a body in an external store
local HEAD = 4 -- bytes of the head, which the sender gives
local TIME = 6 -- bytes of a due time or an expiry
local FIXED = 8 -- bytes that every record has: head and acceptance number
local TIME_BYTES = 6 -- of the due time and of the expiry
local ACCEPTED_CYCLE = 4294967296 -- a record has the acceptance number modulo this

-- Return the first byte (codec and flags) and the priority in the head of a record.
--- @inline
local function split_head(head)
  local first_byte, a, b, c = string.byte(head, 1, HEAD)
  return first_byte, a * 65536 + b * 256 + c
end
