--[[
Numbers of deliveries (`d.fence`). A slot counts its deliveries. In a topic that was resized,
messages of one key may be in two slots; there the numbers are times, epoch us: of two deliveries,
the later one has the larger number, in whichever slot it is. Numbers advance in steps of 2048, by
which receipts tell them apart, and `skipped` counts the numbers without a delivery.
]]
--- @needs slot
--- @include "lib/leases/receipt"
local BY_CLOCK = 1e12 -- from here on a number is a time; no slot counts so far

-- Return how far the numbers advance until `at`, from the number of the last delivery.
--- @inline
local function steps_to(delivered, at)
  return math.max(0, math.floor((at - delivered) / DELIVERY_CYCLE)) * DELIVERY_CYCLE
end

-- Return the number of the next delivery by the clock; `number` is the next one by counting. Counts
-- the numbers that are left out.
--- @inline
local function number_by_clock(number, now_us)
  local steps = steps_to(number - 1, now_us)
  if steps > 0 then
    redis.call('HINCRBY', slot, 'skipped', string.format('%.0f', steps))
  end
  return number + steps
end
