--[[
Answering a command that is sent twice.

A client sends a command again when its reply was lost. Each caller has a session, sends one command
at a time, and gives each a sequence number. The slot's hash keeps the last number of each session
and the answer to it, and answers a number that it has seen instead of running the command again. A
copy that was delayed in the network until its caller had gone on to a later number is refused.

The field is the session's name, which begins with @; its value is `<number>:<when, epoch
s>:<answer>`. It lives in the slot's hash because a script reads and writes that anyway: a key of
its own would cost two commands more. The first command of each new session looks at some fields of
the hash and removes sessions that were silent for five minutes, so there are never many more
sessions than callers.

An answer that changed nothing need not be kept: a copy finds nothing to do. The exception is a
take, which prepare therefore remembers when it is a repetition.
]]
--- @needs slot
--- @include "lib/check"
--- @include "lib/session"
local KEPT_S = 300
-- Fields that a new session looks at: five for the field that it adds. An answer may have 13 KB,
-- and is read as a whole.
local SWEPT = 5

-- The (session, number) of a call: the argument is `<session> <number>`.
local function session_of(call)
  local session, number = string.match(call, '^(@[^ ]+) (%d+)$')
  if not session then
    fail('ARG', 'session')
  end
  return session, number
end

-- The answer that was given to this number, or nil; `kept` is the value of the session's field.
local function answer_in(kept, number)
  if kept then
    local colon = string.find(kept, ':', 1, true)
    local last = string.sub(kept, 1, colon - 1)
    if last == number then
      return string.sub(kept, colon + 12)
    end
    if tonumber(last) > tonumber(number) then
      fail('LATE', slot) -- its caller has gone on: nobody would hold the messages that it takes
    end
  end
  return nil
end

-- The value of a session's field: when, in 10 digits, and the answer.
local function kept_answer(number, now, answer)
  local seconds = string.format('%010d', now / 1000)
  local value = session_answer(number, seconds, answer)
  return value
end

-- Look at some fields of the slot, and remove sessions that were silent for long.
local function sweep_sessions(now, count)
  local swept = redis.call('HGET', slot, 'swept') or '0'
  local page = redis.call('HSCAN', slot, swept, 'COUNT', count)
  local fields, silent = page[2], {}
  for i = 1, #fields, 2 do
    local since = string.byte(fields[i], 1) == 64 and string.match(fields[i + 1], '^%d+:(%d+):')
    if since and tonumber(since) < now / 1000 - KEPT_S then
      silent[#silent + 1] = fields[i]
    end
  end
  if #silent > 0 then
    redis.call('HDEL', slot, unpack(silent))
  end
  if page[1] ~= swept then
    redis.call('HSET', slot, 'swept', page[1])
  end
end

-- For scripts that make only one such call: the answer that was given to it, or nil.
local function replayed(call)
  local session, number = session_of(call)
  return answer_in(redis.call('HGET', slot, session), number)
end

-- Keep the answer to a call. A session that is new removes others that are silent.
local function remember(call, now, answer)
  local session, number = session_of(call)
  if redis.call('HSET', slot, session, kept_answer(number, now, answer)) == 1 then
    sweep_sessions(now, SWEPT)
  end
end
