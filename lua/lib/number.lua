--- @include "lib/record"
-- The number that rmq.Audit has put on a message: `<producer, 10 hex digits>.<number>`, in the first header of its
-- record, `rmq-audit`. No header is unpacked.
local NUMBER = '\169rmq-audit'

-- read_number: (producer, number) from the text; nothing where it is none.
local function read_number(text)
  local producer, number = string.match(text, '^(%x+)%.(%d+)$')
  if producer and #producer == 10 and #number < 16 then
    return producer, tonumber(number)
  end
end

-- number_of: the same from a record. The twin of record.number_of.

local function number_of(record)
  local head = record and #record > 8 and string.byte(record, 1) or 0
  if not flagged(head, 16) then
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
  if string.sub(record, at, at + 9) ~= NUMBER then
    return
  end
  local size = (string.byte(record, at + 10) or 160) - 160
  return read_number(string.sub(record, at + 11, at + 10 + size))
end
