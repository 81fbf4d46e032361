--[[
Messages that went from one topic to another, by redrive_hold, redrive_send and redrive_settle. The
key `arrivals` has, by score,

  -9e15 + time         member: it went to another topic then. The outbox asks where its messages
                       are, and must not take them for lost. Only ids that their sender keeps are
                       noted. redrive_send removes the notes of ids that come back
  -10 * time - place   member and token: it was refused here; the letter of redrive_send at `place`
                       says why
  time                 member and token: it was stored here, and its dead letter is gone since then
  9e15 + time          member and token: it was stored here, and its dead letter may still be there.
                       This time is in epoch s

The other times are in epoch ms. The first and the last kind are kept for 30 days, the others for an
hour. Each write to the key forgets some older entries, and so does tidy. The key expires after 30
days.
]]
--- @needs arrivals
local DEPARTED, ARRIVED = -9e15, 9e15
local NOTE_KEEP_MS, OUTCOME_KEEP_MS = 2592000000, 3600000

-- Forget up to `limit` entries of each kind that are past their time; return whether more may be.
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

-- Note what became of messages; `entries`: scores and members in turn, at least one of each.
local function note_arrivals(now, entries)
  redis.call('ZADD', arrivals, unpack(entries))
  forget_arrivals(now, #entries)
  redis.call('EXPIRE', arrivals, NOTE_KEEP_MS / 1000)
end

-- Note ids (a list) as gone to another topic.
local function note_departures(now, ids)
  local entries = {}
  for i = 1, #ids do
    entries[2 * i - 1], entries[2 * i] = string.format('%.0f', DEPARTED + now), ids[i]
  end
  note_arrivals(now, entries)
end
