-- fail: stops the script before its first write. The text is ours and names keys only: what a caller
-- sent never enters an error reply.
local function fail(code, detail)
  error('RMQ' .. code .. ' ' .. detail, 0)
end

-- whole: a number argument as a whole number in [low, high], in decimal digits and nothing else:
-- tonumber alone would let NaN, hex, exponents and spaces pass.
local function whole(text, low, high, name)
  local n = string.find(text, '^%d+$') and tonumber(text)
  if n and n >= low and n <= high then
    return n
  end
  fail('ARG', name)
end
