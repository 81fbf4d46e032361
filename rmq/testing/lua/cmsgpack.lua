-- cmsgpack: what the scripts use of the cmsgpack library of Redis, for fakeredis: strings, lists and whole
-- numbers from -2^53 to 2^53. It writes each in its longest MessagePack form, and reads those and, of texts and
-- lists, the shorter ones too: a client writes what publish reads. It reads maps, too: headers.
local cmsgpack = {}
local TEXT, WHOLE, LIST = 219, 211, 221 -- str 32, int 64, array 32

local function big(n, size)
  local bytes = {}
  for b = size, 1, -1 do
    bytes[b] = string.char(n % 256)
    n = math.floor(n / 256)
  end
  return table.concat(bytes)
end

local function write(value)
  local kind = type(value)
  if kind == 'string' then
    return string.char(TEXT) .. big(#value, 4) .. value
  elseif kind == 'number' and value == math.floor(value) then
    return string.char(WHOLE) .. big(value, 8) -- a floored division makes two's complement by itself
  elseif kind == 'table' then
    local parts = {}
    for i = 1, #value do
      parts[i] = write(value[i])
    end
    return string.char(LIST) .. big(#value, 4) .. table.concat(parts)
  end
  error('cmsgpack of rmq.testing cannot write a ' .. kind)
end

local function number(text, at, size)
  local n = 0
  for i = at, at + size - 1 do
    n = n * 256 + string.byte(text, i)
  end
  return n
end

local SIZES = { [217] = 1, [218] = 2, [219] = 4, [220] = 2, [221] = 4, [222] = 2, [223] = 4 } -- bytes of the size, by kind

-- sized: (size, where the rest begins) of a text, a list or a map.
local function sized(text, at, kind, fixed)
  if not SIZES[kind] then
    return kind - fixed, at + 1
  end
  return number(text, at + 1, SIZES[kind]), at + 1 + SIZES[kind]
end

local function read(text, at)
  local kind = string.byte(text, at)
  if kind >= 217 and kind <= TEXT or kind >= 160 and kind < 192 then
    local size, from = sized(text, at, kind, 160)
    return string.sub(text, from, from + size - 1), from + size
  elseif kind == WHOLE then
    local high, low = number(text, at + 1, 4), number(text, at + 5, 4)
    if high >= 2147483648 then
      high = high - 4294967296
    end
    return high * 4294967296 + low, at + 9
  elseif kind == LIST or kind == 220 or kind >= 144 and kind < 160 then
    local found, size = {}, nil
    size, at = sized(text, at, kind, 144)
    for i = 1, size do
      found[i], at = read(text, at)
    end
    return found, at
  elseif kind == 222 or kind == 223 or kind >= 128 and kind < 144 then
    local found, size, key = {}, nil, nil
    size, at = sized(text, at, kind, 128)
    for _ = 1, size do
      key, at = read(text, at)
      found[key], at = read(text, at)
    end
    return found, at
  end
  error('cmsgpack of rmq.testing cannot read byte ' .. tostring(kind))
end

cmsgpack.pack = write

function cmsgpack.unpack(text)
  return (read(text, 1))
end

return cmsgpack
