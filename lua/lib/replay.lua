--[[
Answer a command that is sent twice.

A client sends a command again if its reply was lost. Each caller has a session, sends one command
at a time, and gives each command a sequence number. The slot's hash keeps the last number of each
session and the answer to it. A script gives that answer again instead of running the command a
second time. A copy that arrives after a later command of its caller is refused.

The field is the session's name, which begins with @. Its value is `<number>:<time, epoch
s>:<answer>`. It is in the slot's hash because a script reads and writes that hash anyway: a key of
its own would cost two more commands. The first command of each new session looks at some fields of
the hash and removes sessions that have been silent for five minutes. So there are never many more
sessions than callers.

The answer to a command that changed nothing need not be kept: a copy of the command finds nothing
to do. The exception is a prepare that its caller repeats. Its answer is kept even if it found
nothing, because an earlier copy may arrive later and would find messages that were sent since.
]]
--- @needs slot
--- @include "lib/check"
--- @include "lib/session"
--- @include "lib/split_call"
local KEPT_S = 300
local ANSWER_OFFSET = 12 -- from the first colon to the answer: 10 digits of the time, and `:`
-- Fields that a new session reads: five for each field that is added. An answer may have 13 KB and
-- is read as a whole.
local SWEPT = 5

-- Split a call into its session and number, and check both.
--- @inline
local function session_of(call)
  local session, number = string.match(call, '^(@[^ ]+) (%d+)$')
  if not session then
    fail('ARG', 'session')
  end
  return session, number
end

-- Return the answer to the call of this number, or nil if it is new. `last_call`: the value of the
-- session's field.
--- @inline
local function answer_in(last_call, number)
  if last_call then
    local colon = string.find(last_call, ':', 1, true)
    local last = string.sub(last_call, 1, colon - 1)
    if last == number then
      return string.sub(last_call, colon + ANSWER_OFFSET)
    end
    if tonumber(last) > tonumber(number) then
      fail('LATE', slot) -- the caller has sent another command since, and ignores this reply
    end
  end
  return nil
end

-- Format the value of a session's field.
--- @inline
local function session_value(number, now, answer)
  local seconds = string.format('%010d', now / 1000)
  local value = session_answer(number, seconds, answer)
  return value
end

-- Look at `count` fields of the slot, and remove sessions that have been silent for long.
--- @inline
local function sweep_sessions(now, count)
  local swept = redis.call('HGET', slot, 'swept') or '0'
  local page = redis.call('HSCAN', slot, swept, 'COUNT', count)
  local fields, silent = page[2], {}
  for i = 1, #fields, 2 do
    local since = string.byte(fields[i], 1) == SESSION_SIGN
      and string.match(fields[i + 1], '^%d+:(%d+):')
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

-- Return the answer to a call, or nil if it is new.
--- @inline
local function replayed(call)
  local session, number = session_of(call)
  return answer_in(redis.call('HGET', slot, session), number)
end

-- Keep the answer to a call. A new session removes other sessions that are silent.
--- @inline
local function remember(call, now, answer)
  local session, number = session_of(call)
  local value = session_value(number, now, answer)
  if redis.call('HSET', slot, session, value) == 1 then
    sweep_sessions(now, SWEPT)
  end
end
