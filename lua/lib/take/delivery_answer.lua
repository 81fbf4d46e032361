-- The answer that a session keeps of a take or a hand-over. `repeated_reply` of prepare reads it.

-- Return the answer: the deadline of deliveries, the number of the first delivery, and the members.
--- @inline
local function delivery_answer(deadline, first, members)
  return string.format('%d:%d:', deadline, first) .. members
end
