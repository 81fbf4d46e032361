-- Errors that stop a script before its first write, and checks of arguments.
--- @include "lib/bounds"

-- Stop the script. `detail` is the name of a key or an argument: an error never has text of a
-- caller.
local function fail(code, detail)
  error('RMQ' .. code .. ' ' .. detail, 0)
end

-- Return an argument as a whole number in [low, high]. It must have decimal digits only: tonumber
-- also accepts NaN, hexadecimal numbers, exponents and spaces.
local function whole_number(text, low, high, name)
  local n = string.find(text, '^%d+$') and tonumber(text)
  if n and n >= low and n <= high then
    return n
  end
  fail('ARG', name)
end
