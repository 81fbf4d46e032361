-- The argument `<session> <number>` of a call.
local SESSION_SIGN = 64 -- @, the first byte of the name of a session

-- Return the session and the number of a call without checking them, for short forms. lib/replay
-- checks them.
--- @inline
local function split_call(call)
  local space = string.find(call, ' ', 2, true) or 2
  return string.sub(call, 1, space - 1), string.sub(call, space + 1)
end
