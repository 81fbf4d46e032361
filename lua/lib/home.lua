--- @include "lib/head"
-- failed_place: the old place, in a slot in order, of a delivery that failed; its retry holds the slot until
-- then. nil where no readable record tells whence it came.
local function failed_place(places, records, id, receipt, wait_until)
  local record = redis.call('HGET', records, id)
  if not record or #record < 8 then
    return nil
  end
  local home = priority_of(record)
  if home == 0 and #record >= 14 then
    local high, low = struct.unpack('>I2I4', record, 9)
    home = high * 4294967296 + low
  end
  if home < PRIORITY_MIN or home >= PRIORITY_END and home < TIMED_MIN then
    return nil
  end
  hold_for(places, id, wait_until)
  return old_place(places, home, receipt, record)
end
