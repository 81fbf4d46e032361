-- Members whose stamps follow each other.
--- @include "lib/check"
--- @include "lib/member"

-- The members of a run: the first one, and those that follow. They are joined from ready-made bytes: packing each one costs
-- twice as much.
local function run_members(first, count)
  if #first ~= MEMBER then
    fail('ARG', 'member')
  end
  local ids, high, low = { first }, struct.unpack('>I4I4', first)
  if count == 1 then
    return ids
  end
  local bytes = {}
  for i = 0, 255 do
    bytes[i] = string.char(i)
  end
  local tail, stem = string.sub(first, 9), nil
  for i = 1, count do
    local last = low % 256
    if last == 0 or i == 1 then
      stem = string.sub(struct.pack('>I4I4', high + math.floor(low / 4294967296), low % 4294967296), 1, 7)
    end
    ids[i] = stem .. bytes[last] .. tail
    low = low + 1
  end
  return ids
end
