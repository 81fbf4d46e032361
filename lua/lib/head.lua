-- The priority in the head of a record; lib/record.lua draws all of it.
local function priority_of(record)
  local _, a, b, c = string.byte(record, 1, 4)
  return a * 65536 + b * 256 + c
end
