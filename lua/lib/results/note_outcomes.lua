-- Noting how messages have ended. lib/results/results describes what is stored.
--- @needs slot records failures results keeping
--- @include "lib/bounds"
local OLD_MOST = 2000 -- entries past their time that one call removes

-- Note that messages have ended, and remove old entries: more than are added. Call it while the
-- records and failure entries exist, and after a write that frees memory.
-- `letter`: how they have ended; nil if `given` says it.
-- `how`: nil, or a table of
-- - given: nil, or a letter and what the consumer has given: one text for all, or by position
-- - keep: nil, or for how long all these messages keep their results, ms, except those whose given
--   text is ''. Then the records are not read
-- - members_only: true for dead letters that are removed. They have ended before, but a batch may
--   wait for them
-- The end of a member of a batch is stored as well, for member_ends (lib/batches/batch).
local function note_outcomes(ids, now, letter, how)
  local outcomes, chunk = unpack(redis.call('HMGET', slot, 'outcomes', 'chunk'))
  if not outcomes then
    return
  end
  how = how or {}
  local given, keep, members_only = how.given, how.keep, how.members_only
  --- @include "lib/records/record_bytes"
  --- @include "lib/results/keep_mark"
  --- @include "lib/results/results"
  local page, at, noted = math.min(tonumber(chunk or 1), MOST), write48(now), {}
  local given_to_all = type(given) == 'string' and given
  local last_text, entry, last_keep, last_end = nil, nil, nil, nil -- many have the same
  for from = 1, #ids, page do
    local last = math.min(#ids, from + page - 1)
    local batch = not keep and redis.call('HMGET', records, unpack(ids, from, last))
    local details = not given and letter ~= 's'
      and redis.call('HMGET', failures, unpack(ids, from, last))
    local m, entries, ends, ended = 0, {}, {}, nil -- ended: of members of batches
    for i = from, last do
      local text = given_to_all or given and given[i]
        or letter .. (details and details[i - from + 1] or '')
      local own_keep, is_member = keep, false
      if not keep then
        own_keep, is_member = keep_of(batch[i - from + 1])
      end
      if is_member then
        ended = ended or {}
        ended[#ended + 1] = { ids[i], batch[i - from + 1], text == '' and 's' or text }
      end
      if text == '' or own_keep == 0 or members_only then
        own_keep = nil
      end
      if own_keep and text ~= last_text then
        last_text, entry = text, string.sub(text, 1, 1) .. at .. string.sub(text, 2)
      end
      if own_keep and own_keep ~= last_keep then
        last_keep, last_end = own_keep, string.format('%.0f', now + own_keep)
      end
      if own_keep then
        entries[m + 1], entries[m + 2] = ids[i], entry
        ends[m + 1], ends[m + 2] = last_end, ids[i]
        m, noted[#noted + 1] = m + 2, ids[i]
      end
    end
    if ended then
      --- @include "lib/results/note_members"
      note_members(ended)
    end
    if m > 0 then
      redis.call('ZADD', keeping, unpack(ends))
      redis.call('HSET', results, unpack(entries))
    end
  end
  if #noted > 0 then
    forget_results(now, math.min(2 * #noted, OLD_MOST))
    publish_results('done', noted)
  end
end
