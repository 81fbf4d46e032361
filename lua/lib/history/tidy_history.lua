-- Removing messages from a history that is past its limits, or whose topic has none any more.
--- @needs slot dead
--- @include "lib/history/trim_history"
--- @include "lib/writes"

-- Remove messages from the history, and return whether more are to be removed. Nothing may be
-- written before this call, which also finds out whether Redis is at maxmemory.
--   history, text: the fields `history` and `acked` of the slot
--- @inline
local function tidy_history(history, text, now)
  local newest, bytes, open = string.match(text, '^(%S+) (%d+) (%d+)$')
  local reply = redis.pcall('HSET', slot, 'acked', text) -- needs memory, but changes nothing
  local most, before = 0, now
  if type(reply) == 'table' then
    allow_oom(dead)
  elseif history then
    most, before = tonumber(string.match(history, '^%d+')), now - string.match(history, '%d+$')
  end
  end_part(newest, tonumber(open))
  local left, more = trim_history(tonumber(bytes), most, before, PARTS_MOST)
  redis.call('HSET', slot, 'acked', newest .. string.format(' %.0f 0', left))
  return more
end
