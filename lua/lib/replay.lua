-- replay: a client library may send a command again when its reply was lost. Each caller works in a
-- lane, one command at a time, and numbers them; the slot keeps the answer to the last number of each
-- lane for a minute, and a number seen before is answered, not done again. A copy that was stuck in the
-- network until its caller had gone on to a later number is refused. An answer that changed nothing need not be kept:
-- the copy would find nothing to do, but for a take, which `prepare` therefore remembers when it is a repetition.
local REPLAY_MS = 60000

local function replayed(key, number)
  local kept = redis.call('GET', key)
  if kept then
    local colon = string.find(kept, ':', 1, true)
    local last = colon and string.sub(kept, 1, colon - 1)
    if last == number then
      return string.sub(kept, colon + 1)
    end
    if last and tonumber(last) > tonumber(number) then
      fail('LATE', key) -- its caller has gone on: nobody would hold what it takes
    end
  end
  return nil
end

local function remember(key, number, answer)
  redis.call('SET', key, number .. ':' .. answer, 'PX', REPLAY_MS)
end
