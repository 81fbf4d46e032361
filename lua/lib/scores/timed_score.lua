--[[
Scores of timed messages: when the message is due, epoch ms. The fraction is the place among the messages of the same ms
(10 bits), then whether the record has a priority (1 bit). Exact until 2109.
]]
--- @needs store
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

-- The last place of each ms is remembered, since a batch is written after all its scores are known.
local last_places, ms_with_room

-- The last place that is taken in a ms; -1 for none.
local function last_place(ms)
  local place = last_places[ms]
  if not place then
    local last = redis.call('ZREVRANGEBYSCORE', store, '(' .. string.format('%.0f', ms + 1), ms, 'WITHSCORES', 'LIMIT', 0, 1)
    place = last[2] and timed_fraction(tonumber(last[2])) or -1
    last_places[ms] = place
  end
  return place
end

-- The ms after `due`, which is full, that has room, or the last one that is looked at.
local function find_room(due)
  local full, ms, ahead, ends = due, due + 1, 1, due + 999
  while ms < ends and last_place(ms) >= PLACES - 1 do
    full, ahead = ms, 2 * ahead + 1
    ms = math.min(due + ahead, ends)
  end
  while ms - full > 1 do
    local middle = math.floor((full + ms) / 2)
    if last_place(middle) >= PLACES - 1 then
      full = middle
    else
      ms = middle
    end
  end
  return ms
end

-- The score behind all messages that are due in the same ms, so that equal times go in the order of arrival, whatever
-- the ids. Where that ms is full, the message takes a place in a later one that has room: looked for 1, 3, 7, ... ms later, and
-- then by halves, so that at most about 20 are read. As more of them fill, that search never ends at an earlier one.
-- After 1000 full ones, a million messages, it shares the last place, and such messages go by id.
local function next_timed_score(due, has_priority)
  last_places, ms_with_room = last_places or {}, ms_with_room or {}
  local ms = ms_with_room[due] or due
  local place = last_place(ms) + 1
  if place >= PLACES then
    ms = find_room(due)
    place = math.min(last_place(ms) + 1, PLACES - 1)
    ms_with_room[due] = ms
  end
  last_places[ms] = place
  return timed_score(ms, place, has_priority)
end
