-- Adding an entry to the history, which lib/history/trim_history describes.
--- @needs prepare acked ackedparts
--- @include "lib/history/history"

-- Add messages to the history before they are removed, and return the new text of the field
-- `acked`, which the caller writes. Call this before the first write: Redis refuses this entry if
-- it is at maxmemory. Then the oldest parts are removed first.
--   packed: the messages; size: bytes of their records, and KEPT_MESSAGE for each of them
--   history, text: the fields `history` and `acked`
--- @inline
local function add_entry(packed, size, history, text, now)
  local ms, seq, bytes, open = string.match(text or NO_STATE, STATE)
  local newest = ms .. '-' .. seq
  local entry = string.format('%.0f-0', now)
  if now <= tonumber(ms) then
    entry = ms .. string.format('-%.0f', seq + 1)
  end
  local most = tonumber(string.match(history, '^%d+'))
  local ends = open + size >= PART or (open + size) * PARTS_LEAST >= most
  if ends then
    redis.call('LLEN', ackedparts)
  end
  local reply = redis.pcall('XADD', acked, entry, 'm', packed)
  local is_refused = type(reply) == 'table'
  if ends or is_refused then
    --- @include "lib/history/trim_history"
    if is_refused then
      if string.find(reply.err, 'OOM', 1, true) then
        redis.call('LLEN', ackedparts)
        allow_oom(prepare)
        bytes, open = free_room(newest, tonumber(bytes), tonumber(open)), 0
      end
      redis.call('XADD', acked, entry, 'm', packed)
    end
    bytes, open = bytes + size + ENTRY, open + size + ENTRY
    if ends then
      end_part(entry, open)
      local before = now - tonumber(string.match(history, '%d+$'))
      bytes, open = trim_history(bytes, most, before, PARTS_MOST + size / PART), 0
    end
  else
    bytes, open = bytes + size + ENTRY, open + size + ENTRY
  end
  local state = string.format('%s %.0f %.0f', entry, bytes, open)
  return state
end
