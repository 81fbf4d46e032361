-- Errors that stop a script before its first write, and checks of arguments.
--- @include "lib/bounds"

-- Stop the script. The text names keys only: nothing that a caller sent enters an error reply.
local function fail(code, detail)
  error('RMQ' .. code .. ' ' .. detail, 0)
end

-- A number argument as a whole number in [low, high]. It must be decimal digits and nothing else: tonumber alone
-- accepts NaN, hex, exponents and spaces.
local function whole_number(text, low, high, name)
  local n = string.find(text, '^%d+$') and tonumber(text)
  if n and n >= low and n <= high then
    return n
  end
  fail('ARG', name)
end
