--[[
Messages that went from one topic to another, by redrive_hold, redrive_send and redrive_settle. The
key `arrivals` has four kinds of entries, by score:

  -9e15 + time            A member that went to another topic at that time. The outbox uses these
                          entries: its messages there are not lost. Only ids that their sender keeps
                          have an entry. redrive_send removes the entries of ids that come back.
  -10 * time - position   A member and token that was refused here. `position` says why: it is the
                          position of a character in cfptx (redrive_send).
  time                    A member and token that was stored here. Its dead letter was removed at
                          that time.
  9e15 + time in epoch s  A member and token that was stored here. Its dead letter may still exist.

The other times are in epoch ms. The first and the last kind are kept for 30 days, the others for an
hour. Each write to the key removes some older entries, and tidy removes more. The key expires after
30 days.
]]
--- @needs arrivals
local DEPARTED, ARRIVED = -9e15, 9e15
local NOTE_KEEP_MS, OUTCOME_KEEP_MS = 2592000000, 3600000

-- Remove up to `limit` entries of each kind that are past their time. Return whether there may be
-- more.
local function forget_arrivals(now, limit)
  local long_ago, an_hour_ago, more = now - NOTE_KEEP_MS, now - OUTCOME_KEEP_MS, false
  local ranges = { DEPARTED, DEPARTED + long_ago, -10 * an_hour_ago, an_hour_ago,
    ARRIVED, ARRIVED + math.floor(long_ago / 1000) }
  for i = 1, #ranges, 2 do
    local low, high = string.format('%.17g', ranges[i]), string.format('%.17g', ranges[i + 1])
    local old = redis.call('ZRANGEBYSCORE', arrivals, low, high, 'LIMIT', 0, limit)
    if #old > 0 then
      redis.call('ZREM', arrivals, unpack(old))
    end
    more = more or #old == limit
  end
  return more
end

-- Add entries. `entries`: scores and members in turn, at least one of each.
local function note_arrivals(now, entries)
  redis.call('ZADD', arrivals, unpack(entries))
  forget_arrivals(now, #entries)
  redis.call('EXPIRE', arrivals, NOTE_KEEP_MS / 1000)
end

-- Add entries for ids that went to another topic.
local function note_departures(now, ids)
  local entries = {}
  for i = 1, #ids do
    entries[2 * i - 1], entries[2 * i] = string.format('%.0f', DEPARTED + now), ids[i]
  end
  note_arrivals(now, entries)
end
