-- The answer that a session keeps of a take or a hand-over. `repeated_reply` of prepare reads it.
local AS_LIST, AS_RUNS = ':', '=' -- before the members: how they are written

-- Return the answer: the deadline of deliveries, the number of the first delivery, and the members.
--- @inline
local function delivery_answer(deadline, first, members, form)
  return string.format('%d:%d', deadline, first) .. (form or AS_LIST) .. members
end
