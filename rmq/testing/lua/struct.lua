-- struct: what the scripts use of the struct library of Redis, for fakeredis: big-endian, written as >, then B for one byte,
-- I1 to I8 for whole numbers, d for a double (finite, not below 2^-1022), c1 to c99 for text of that size.
local struct = {}
local TWO_48, TWO_52 = 2 ^ 48, 2 ^ 52
local function fields_of(format)
  local found, at = {}, 2
  assert(string.sub(format, 1, 1) == '>', 'struct: only big-endian')
  while at <= #format do
    local letter, size = string.match(format, '^([BIdc])(%d*)', at)
    local sized = letter == 'I' or letter == 'c'
    assert(letter and sized == (size ~= ''), 'struct: unknown format ' .. format)
    found[#found + 1] = { letter = letter, size = tonumber(size) or letter == 'd' and 8 or 1 }
    at = at + 1 + #size
  end
  return found
end
local function number_bytes(n, size)
  local bytes = {}
  n = math.floor(tonumber(n))
  for b = size, 1, -1 do
    bytes[b] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(bytes)
end
local function read_number(text, at, size)
  local n = 0
  for i = at, at + size - 1 do
    n = n * 256 + string.byte(text, i)
  end
  return n
end
local function double_bytes(n)
  n = tonumber(n)
  if n == 0 then
    return number_bytes(0, 8)
  end
  local fraction, exponent = math.frexp(math.abs(n))
  local top = (n < 0 and 2048 or 0) + exponent + 1022
  local rest = (fraction * 2 - 1) * TWO_52
  return number_bytes(top * 16 + math.floor(rest / TWO_48), 2) .. number_bytes(rest % TWO_48, 6)
end
local function read_double(text, at)
  local high, low = read_number(text, at, 2), read_number(text, at + 2, 6)
  local exponent = math.floor(high / 16) % 2048
  if exponent == 0 then
    return 0
  end
  local n = math.ldexp(1 + (high % 16 * TWO_48 + low) / TWO_52, exponent - 1023)
  return high >= 32768 and -n or n
end
function struct.pack(format, ...)
  local parts = {}
  for i, field in ipairs(fields_of(format)) do
    local value = select(i, ...)
    if field.letter == 'c' then
      parts[i] = string.sub(value, 1, field.size)
    else
      parts[i] = field.letter == 'd' and double_bytes(value) or number_bytes(value, field.size)
    end
  end
  return table.concat(parts)
end
function struct.unpack(format, text, at)
  local found = {}
  at = at or 1
  for i, field in ipairs(fields_of(format)) do
    assert(at + field.size - 1 <= #text, 'struct: data string too short')
    if field.letter == 'c' then
      found[i] = string.sub(text, at, at + field.size - 1)
    else
      found[i] = field.letter == 'd' and read_double(text, at) or read_number(text, at, field.size)
    end
    at = at + field.size
  end
  found[#found + 1] = at
  return unpack(found)
end
return struct
