-- Removing messages from a history that is past its limits, or whose topic has none any more.
--- @needs slot dead ackedparts
--- @include "lib/history/trim_history"
--- @include "lib/writes"

local PART_MS = 60000 -- time of a part, so that a slot with few acks also removes them

-- Remove messages from the history, and return whether more are to be removed. Call this before the
-- first write: the call also finds out whether Redis is at maxmemory.
--   history, text: the fields `history` and `acked` of the slot
--- @inline
local function tidy_history(history, text, now)
  local newest, bytes, open = string.match(text, '^(%S+) (%d+) (%d+)$')
  local reply = redis.pcall('HSET', slot, 'acked', text) -- needs memory, but changes nothing
  local most, before, parts = 0, now, PARTS_MOST
  if type(reply) == 'table' then
    allow_oom(dead)
    parts = FREED -- the next call finds out whether that was enough
  elseif history then
    most, before = tonumber(string.match(history, '^%d+')), now - string.match(history, '%d+$')
  end
  local last_part = redis.call('LINDEX', ackedparts, -1)
  if most == 0 or not last_part or tonumber(string.match(last_part, '^%d+')) < now - PART_MS then
    end_part(newest, tonumber(open))
    open = 0
  end
  local left, more = trim_history(tonumber(bytes), most, before, parts)
  redis.call('HSET', slot, 'acked', newest .. string.format(' %.0f %.0f', left, open))
  return more
end
