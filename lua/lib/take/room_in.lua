--[[
The limit of a slot: its part of the topic's limit. `rmq/kernel/core/delivery_limits.py` writes it
to the slot's hash as `<rate>:<per>:<burst>:<most>`. It means `rate` messages in `per` ms, `burst`
messages at once, and `most` messages in flight. 0 as rate or most is no limit.
lib/take/key_limits reads the rest of the field.

The rate is a token bucket. A new token arrives after `per` / `rate`. The field `bucket` of the slot
is `<since>:<taken>`: how many tokens were taken since that ms, when the bucket was full. Both are
whole numbers, so no fraction is lost. Messages in flight are counted in the PrepareQueue: after a
consumer died, they are free again when its leases end.
]]
--- @include "lib/check"

-- Return how many messages may be taken now; nil, or a gate if none may be taken (next_ready_in
-- describes it); and the bucket as {since, taken}, or false without a rate. If more tokens are
-- missing than the bucket can have, the clock was set back. The tokens are then unknown, so the
-- bucket is empty from now on, and `set_back` says that a take has to write it.
local function room_in(limit, bucket, in_flight, now)
  local rate, per, burst, most = string.match(limit, '^(%d+):(%d+):(%d+):(%d+)')
  if not rate then
    fail('ARG', 'limit')
  end
  rate, per, burst, most = tonumber(rate), tonumber(per), tonumber(burst), tonumber(most)
  local room, gate = MOST, nil
  local since, taken, set_back = now, 0, false
  if rate > 0 then
    if bucket then
      since, taken = string.match(bucket, '^(%d+):(%d+)$')
      since, taken = tonumber(since), tonumber(taken)
    end
    local missing = taken * per - (now - since) * rate -- tokens times `per`
    if missing <= 0 then
      since, taken, missing = now, 0, 0
    elseif missing > burst * per then
      since, taken, missing, set_back = now, burst, burst * per, true
    end
    local periods = math.floor((now - since) / per)
    since, taken = since + periods * per, taken - periods * rate
    room = math.floor((burst * per - missing) / per)
    if room == 0 then
      gate = { at = since + math.ceil((taken - burst + 1) * per / rate) }
    end
  end
  if most > 0 and in_flight >= most then
    return 0, { at = math.huge, field = 'blocked' }
  elseif most > 0 then
    room = math.min(room, most - in_flight)
  end
  return room, gate, rate > 0 and { since, taken, set_back = set_back }
end
