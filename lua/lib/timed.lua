-- timed: the score of a timed message is the ms in which it is due, its place among the messages of that ms (10
-- bits), and whether its record is to be asked for a priority when the time has come (1 bit). Exact until 2109.
local PLACES = 1024 -- in one ms

local function timed_score(ms, place, ask)
  return ms + (2 * place + ask) / 2048
end

-- timed_fraction: (place, ask) of a timed score.
local function timed_fraction(score)
  local bits = (score % 1) * 2048
  return math.floor(bits / 2), bits % 2
end

-- in_line: the score of a message that is due at `due`, behind all that are due in the same ms: who came first goes
-- first, whatever its id. Where that ms is full, the message stands in the next one that is not. After 1000 full
-- ones, a million messages, it shares the last place, and such messages go by id. The newest places are
-- remembered, since a batch is written after all its scores are known.
local newest, begin = {}, {}
local function in_line(store, due, ask)
  local ms = begin[due] or due
  while ms < due + 1000 do
    local place = newest[ms]
    if not place then
      local last = redis.call('ZREVRANGEBYSCORE', store, '(' .. string.format('%.0f', ms + 1), ms, 'WITHSCORES', 'LIMIT', 0, 1)
      place = last[2] and timed_fraction(tonumber(last[2])) or -1
      newest[ms] = place
    end
    begin[due] = ms
    if place < PLACES - 1 then
      newest[ms] = place + 1
      return timed_score(ms, place + 1, ask)
    end
    ms = ms + 1
  end
  return timed_score(due + 999, PLACES - 1, ask)
end
