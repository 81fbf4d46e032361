-- Functions for the session of a caller that short forms and long forms share. lib/replay describes
-- sessions.

-- Return whether a call has a larger number than the last call of its session. `last_call`: value
-- of the session's field.
--- @inline
local function is_next_call(last_call, call_number)
  return tonumber(call_number) > tonumber(string.match(last_call, '^%d+'))
end

-- Return the value of a session's field. `seconds`: time of the answer, epoch s in 10 digits.
--- @inline
local function session_answer(number, seconds, answer)
  return number .. ':' .. seconds .. ':' .. answer
end
