--[[
make_receipts: make the PrepareQueue scores of messages that take_messages took, for prepare and query_take. A score is the
receipt of its delivery: deadline s * 1000 + retries remaining + (delivery number mod 2048) / 2048.

Reads:     deadline: epoch s
           slot, now_us: where numbers go by the clock
           ids, n, reply, max_retries, retries_left: as take_messages declares them
Writes:    nothing
Declares:  leases: scores and ids in turn, as ZADD takes them
           first: the number of the first delivery
           fresh
Returns for the caller: no
]]
local first, leases = reply[4], {}
if first > 1e12 then
  --- @include "lib/delivery_numbers"
  first = number_by_clock(slot, first, now_us)
  reply[4] = first
end
local fresh = string.format('%d.%%011d', deadline * 1000 + max_retries) -- a message that has not failed
for i = 1, n do
  local left, fraction = retries_left and retries_left[i], (first + i - 1) % 2048 * 48828125 -- times 1e11 / 2048: exact
  if left and left < max_retries then
    leases[2 * i - 1] = string.format('%d.%011d', deadline * 1000 + left, fraction)
  else
    leases[2 * i - 1] = string.format(fresh, fraction)
  end
  leases[2 * i] = ids[i]
end
