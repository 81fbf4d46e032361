--- @include "lib/record"
-- number_of: the producer and the number that rmq.Audit has put into a record: the first of its headers,
-- `rmq-audit`, `<producer, 10 hex digits>.<number>`. Nothing where there is none. No header is unpacked.
local NUMBER = '\169rmq-audit'

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
  local producer, number = string.match(string.sub(record, at + 11, at + 10 + size), '^(%x+)%.(%d+)$')
  if producer and #producer == 10 and #number < 16 then
    return producer, tonumber(number)
  end
end
