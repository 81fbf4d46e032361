-- struct: what the scripts use of the struct library of Redis, for fakeredis: big-endian whole numbers,
-- written as >, then B for one byte, or I1 to I8.
local struct = {}
local function sizes(format)
  local found, at = {}, 2
  assert(string.sub(format, 1, 1) == '>', 'struct: only big-endian')
  while at <= #format do
    local letter, size = string.match(format, '^([BI])(%d?)', at)
    assert(letter and (letter == 'I') == (size ~= ''), 'struct: unknown format ' .. format)
    found[#found + 1] = tonumber(size) or 1
    at = at + 1 + #size
  end
  return found
end
function struct.pack(format, ...)
  local parts = {}
  for i, size in ipairs(sizes(format)) do
    local n, bytes = select(i, ...), {}
    n = math.floor(tonumber(n))
    for b = size, 1, -1 do
      bytes[b] = string.char(n % 256)
      n = math.floor(n / 256)
    end
    parts[i] = table.concat(bytes)
  end
  return table.concat(parts)
end
function struct.unpack(format, text, at)
  local found = {}
  at = at or 1
  for i, size in ipairs(sizes(format)) do
    local n = 0
    for _ = 1, size do
      n = n * 256 + string.byte(text, at)
      at = at + 1
    end
    found[i] = n
  end
  found[#found + 1] = at
  return unpack(found)
end
return struct
