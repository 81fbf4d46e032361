--[[
Scores of timed messages: when the message is due, epoch ms. The fraction is the place among the
messages of the same ms (10 bits), and then whether the record has a priority (1 bit). Exact until
the year 2109.
]]
--- @needs store
local PLACES = 1024 -- of one ms
local MS_LOOKED_AT = 999 -- after the due time
-- has_priority of a message whose record is not read now. The take that finds the message due reads
-- the priority in its record.
local READ_RECORD = 1

-- Return the score of a timed message. `has_priority`: 1 if its record has a priority, else 0.
--- @inline
local function timed_score(ms, place, has_priority)
  return ms + (2 * place + has_priority) / 2048
end

-- Return the place in a timed score, and whether the record has a priority (1 or 0).
local function timed_fraction(score)
  local bits = (score % 1) * 2048
  return math.floor(bits / 2), bits % 2
end

-- The last place of each ms, and a later ms with room for each full ms. They are kept in memory,
-- because a batch is written only after all its scores are computed.
local last_places, ms_with_room

-- Return the last place that is taken in a ms; -1 if none is.
local function last_place(ms)
  local place = last_places[ms]
  if not place then
    local after = '(' .. string.format('%.0f', ms + 1)
    local last = redis.call('ZREVRANGEBYSCORE', store, after, ms, 'WITHSCORES', 'LIMIT', 0, 1)
    place = last[2] and timed_fraction(tonumber(last[2])) or -1
    last_places[ms] = place
  end
  return place
end

-- Return a ms with room after `due`, which is full; or the last ms of the search. The search looks
-- 1, 3, 7, ... ms later and then halves, so it reads at most about 20 ms. A later search never ends
-- at an earlier ms.
local function find_room(due)
  local full, ms, ahead, ends = due, due + 1, 1, due + MS_LOOKED_AT
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

-- Return the score behind all messages that are due in the same ms. So messages with equal times go
-- in the order of arrival, whatever their ids. If that ms is full, the message gets a place in a
-- later ms with room. After 1000 full ms (a million messages) it shares the last place, and ids
-- decide.
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
