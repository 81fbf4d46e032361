-- The answer of a session to a take or a hand-over. `first_reply` of prepare reads it.

-- Return an answer: the deadline of deliveries, the number of the first, and their members.
--- @inline
local function delivery_answer(deadline, first, members)
  return string.format('%d:%d:', deadline, first) .. members
end
