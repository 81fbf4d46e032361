--[[
The limit of a slot: its share of the topic's limit. `rmq/kernel/core/limits.py` writes it to the
slot's hash as `<rate>:<per>:<burst>:<most>`: `rate` messages in `per` ms, `burst` of them at once,
and `most` in flight; a rate or a most of 0 is no limit. lib/take/key_limits reads what follows.

The rate is a token bucket. A token is 1 / rate of `per`, and the field `bucket` of the slot is
`<since>:<taken>`: the tokens that were taken since that ms, when the bucket was full. Both are
whole numbers, so no fraction is lost. Messages in flight are counted in the PrepareQueue: the share
of a consumer that died comes back with its leases.
]]
--- @include "lib/check"

-- Return how many messages may be taken now; nil, or when this changes if none may be taken, as
-- next_ready_in takes it; and the bucket as {since, taken}, or false without a rate. A bucket that
-- lacks more than it holds is from before the clock was set back: its tokens are unknown, so it is
-- empty from now on, and `set_back` says that a take has to write it.
local function room_in(limit, bucket, in_flight, now)
  local rate, per, burst, most = string.match(limit, '^(%d+):(%d+):(%d+):(%d+)')
  if not rate then
    fail('ARG', 'limit')
  end
  rate, per, burst, most = tonumber(rate), tonumber(per), tonumber(burst), tonumber(most)
  local room, gate = 1000, nil
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
