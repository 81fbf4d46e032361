--[[
Answering a command that is sent twice.

A client sends a command again when its reply was lost. Each caller has a session, sends one command at a time, and
gives each a sequence number. The slot keeps the answer to the last number of each session for a minute, and answers a
number that it has seen instead of running the command again. A copy that was delayed in the network until its caller
had gone on to a later number is refused.

An answer that changed nothing need not be kept: a copy finds nothing to do. The exception is a take, which prepare
therefore remembers when it is a repetition.
]]
--- @include "lib/check"
local REPLAY_MS = 60000

-- The answer that was given to this number, or nil.
local function replayed(key, number)
  local kept = redis.call('GET', key)
  if kept then
    local colon = string.find(kept, ':', 1, true)
    local last = colon and string.sub(kept, 1, colon - 1)
    if last == number then
      return string.sub(kept, colon + 1)
    end
    if last and tonumber(last) > tonumber(number) then
      fail('LATE', key) -- its caller has gone on: nobody would hold the messages that it takes
    end
  end
  return nil
end

local function remember(key, number, answer)
  redis.call('SET', key, number .. ':' .. answer, 'PX', REPLAY_MS)
end
