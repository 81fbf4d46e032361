--[[
Numbers of deliveries (`d.fence`). A slot counts its deliveries. In a topic that was resized, messages of one basis may be in
two slots; there the numbers are times, epoch us: of two deliveries the later one has the larger number, in whichever slots
they are. They go on in steps of 2048, by which receipts know them, and `skipped` counts the numbers that no delivery has.
]]
--- @needs slot
--- @include "lib/leases/receipt"
local BY_CLOCK = 1e12 -- from here on a number is a time; no slot counts so far

-- How far the numbers go on until `at`, from the number of the last delivery.
--- @inline
local function steps_to(delivered, at)
  return math.max(0, math.floor((at - delivered) / DELIVERY_CYCLE)) * DELIVERY_CYCLE
end

-- The number of the next delivery, which would be this one if the slot counted; and what was left out is counted.
--- @inline
local function number_by_clock(number, now_us)
  local steps = steps_to(number - 1, now_us)
  if steps > 0 then
    redis.call('HINCRBY', slot, 'skipped', string.format('%.0f', steps))
  end
  return number + steps
end
