-- fail: stops the script before its first write. The text is ours and names keys only: what a caller
-- sent never enters an error reply.
local function fail(code, detail)
  error('RMQ' .. code .. ' ' .. detail, 0)
end

-- whole: a number argument as a whole number in [low, high]. NaN passes tonumber and fails every
-- comparison, so the test is written to need a true one.
local function whole(text, low, high, name)
  local n = tonumber(text)
  if n and n >= low and n <= high and n % 1 == 0 then
    return n
  end
  fail('ARG', name)
end
