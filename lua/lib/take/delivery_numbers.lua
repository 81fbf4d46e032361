--[[
Numbers of deliveries (`d.fence`). A slot counts its deliveries. In a topic that was resized,
messages of one key may be in two slots. There the numbers are times, epoch us, so that a later
delivery has a larger number in whichever slot it is. The numbers then advance by multiples of 2048,
so the fractions of receipts still count up. `skipped` counts the numbers without a delivery.
]]
--- @needs slot
--- @include "lib/leases/receipt"
local BY_CLOCK = 1e12 -- from here on a number is a time; no slot counts that far

-- Return by how much the number of the last delivery has to advance to reach `at`.
--- @inline
local function steps_to(delivered, at)
  return math.max(0, math.floor((at - delivered) / DELIVERY_CYCLE)) * DELIVERY_CYCLE
end

-- Return the number of the next delivery by the clock, and add the skipped numbers to `skipped`.
-- `number`: the next number by counting.
--- @inline
local function number_by_clock(number, now_us)
  local steps = steps_to(number - 1, now_us)
  if steps > 0 then
    redis.call('HINCRBY', slot, 'skipped', string.format('%.0f', steps))
  end
  return number + steps
end
