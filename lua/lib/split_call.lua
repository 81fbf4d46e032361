-- The call that an argument names: `<session> <number>`. The name of a session begins with @.
local AT = 64 -- @

-- The (session, number) of a call, not checked: lib/replay does that. A single message passes here.
--- @inline
local function split_call(call)
  local space = string.find(call, ' ', 2, true) or 2
  return string.sub(call, 1, space - 1), string.sub(call, space + 1)
end
