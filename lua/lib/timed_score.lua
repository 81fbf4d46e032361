--[[
Scores of timed messages: when the message is due, epoch ms. The fraction is the place among the messages of the same ms
(10 bits), then whether the record has a priority (1 bit). Exact until 2109.
]]
local PLACES = 1024 -- of one ms

-- `has_priority`: 1 where the record is asked for its priority when the message is due, else 0.
local function timed_score(ms, place, has_priority)
  return ms + (2 * place + has_priority) / 2048
end

-- The (place, has_priority) of a timed score.
local function timed_fraction(score)
  local bits = (score % 1) * 2048
  return math.floor(bits / 2), bits % 2
end

-- The score behind all messages that are due in the same ms, so that equal times go in the order of arrival, whatever
-- the ids. Where that ms is full, the message takes a place in the next ms that is not. After 1000 full ones, a million
-- messages, it shares the last place, and such messages go by id. The last place of each ms is remembered,
-- since a batch is written after all its scores are known.
local last_places, first_free_ms
local function next_timed_score(store, due, has_priority)
  last_places, first_free_ms = last_places or {}, first_free_ms or {}
  local ms = first_free_ms[due] or due
  while ms < due + 1000 do
    local place = last_places[ms]
    if not place then
      local last = redis.call('ZREVRANGEBYSCORE', store, '(' .. string.format('%.0f', ms + 1), ms, 'WITHSCORES', 'LIMIT', 0, 1)
      place = last[2] and timed_fraction(tonumber(last[2])) or -1
      last_places[ms] = place
    end
    first_free_ms[due] = ms
    if place < PLACES - 1 then
      last_places[ms] = place + 1
      return timed_score(ms, place + 1, has_priority)
    end
    ms = ms + 1
  end
  return timed_score(due + 999, PLACES - 1, has_priority)
end
