--[[
make_receipts: make the PrepareQueue scores of messages that take_messages took, for prepare and query_take. A score is the
receipt of its delivery: deadline s * 1000 + retries remaining + (delivery number mod 2048) / 2048.

Reads:     deadline: epoch s
           ids, n, reply, max_retries, retries_left: as take_messages declares them
Writes:    nothing
Declares:  leases: scores and ids in turn, as ZADD takes them
           first: the number of the first delivery
           base
Returns for the caller: no
]]
local first, leases = reply[4], {}
local base = deadline * 1000 + (retries_left and 0 or max_retries)
for i = 1, n do
  leases[2 * i - 1] = base + (retries_left and retries_left[i] or 0) + (first + i - 1) % 2048 / 2048
  leases[2 * i] = ids[i]
end
