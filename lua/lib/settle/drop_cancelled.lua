-- Deleting cancelled messages, whether they waited or were in flight.
--- @needs slot records failures audit bodies settled0 settled1 results keeping
--- @include "lib/records/drop_for_good"
--- @include "lib/results/note_outcomes"
--- @include "lib/send/dedup_window"

-- Stop the script if a key has a wrong type. Call it before the first write.
--- @inline
local function check_cancelled(audited)
  redis.call('HLEN', records)
  redis.call('HLEN', failures)
  redis.call('HLEN', bodies)
  redis.call('HLEN', results)
  redis.call('ZCARD', keeping)
  redis.call('SCARD', settled0)
  redis.call('SCARD', settled1)
  if audited then
    redis.call('ZCARD', audit)
  end
end

-- Delete everything that belongs to cancelled messages which are no longer in a queue, and count
-- them. Ids that their senders keep stay settled. The first write needs no memory.
--   audited, chunk, dedup_ms, settled_turn: fields of the slot
--- @inline
local function drop_cancelled(ids, audited, chunk, dedup_ms, settled_turn, now)
  note_outcomes(ids, now, 'c')
  drop_for_good(audited, tonumber(chunk or 1), ids, now)
  redis.call('HINCRBY', slot, 'cancelled', #ids)
  local window, kept = tonumber(dedup_ms), {}
  for i = 1, #ids do
    if stays_settled(ids[i]) then
      kept[#kept + 1] = ids[i]
    end
  end
  if window > 0 and #kept > 0 then
    remember_settled(window, tonumber(settled_turn), now, kept)
  end
end
