--- @include "lib/slot_fields"
--- @include "lib/take/in_order"
--- @include "lib/wake/wake"

-- Wake the consumers that wait for deliveries which are given back, or hand the deliveries over.
-- `fields`: from read_return_fields; `later`: true if no delivery may be received now.
--- @inline
local function signal_given_back(fields, later, channel, index, now)
  local is_unblocked = unblock(fields[BLOCKED], now)
  local any_awaits = is_awaited(fields[WAITING], now)
  if is_unblocked or later and any_awaits then
    wake(channel, index)
  elseif any_awaits then
    --- @include "lib/wake/hand_over"
    serve_sleepers(channel, index, now)
  end
end
