-- Noting how messages have ended. lib/results/results describes what is stored.
--- @needs slot records failures results keeping
--- @include "lib/bounds"
local OLD_MOST = 2000 -- entries past their time that one call removes

-- Note that messages have ended, and remove old entries: more than are added. Call it while the
-- records and failure entries exist, and after a write that frees memory.
-- - letter: how they have ended; nil if `given` says it
-- - given: nil, or a letter and what the consumer has given: one text for all, or by position
local function note_outcomes(ids, now, letter, given)
  local outcomes, chunk = unpack(redis.call('HMGET', slot, 'outcomes', 'chunk'))
  if not outcomes then
    return
  end
  --- @include "lib/records/record_bytes"
  --- @include "lib/results/keep_mark"
  --- @include "lib/results/results"
  local page, at, noted = math.min(tonumber(chunk or 1), MOST), write48(now), {}
  local given_to_all = type(given) == 'string' and given
  local last_keep, last_end = nil, nil -- most messages of a call are kept for as long
  for from = 1, #ids, page do
    local marked, positions, keeps = {}, {}, {} -- of the messages that keep their results
    local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + page - 1)))
    for i = 1, #batch do
      local keep, n = keep_of(batch[i]), #marked + 1
      if keep then
        marked[n], positions[n], keeps[n] = ids[from + i - 1], from + i - 1, keep
      end
    end
    local details, entries, ends = nil, {}, {}
    if #marked > 0 and not given and letter ~= 's' then
      details = redis.call('HMGET', failures, unpack(marked))
    end
    local text, entry = nil, nil
    for n = 1, #marked do
      local own = given_to_all or given and given[positions[n]]
        or letter .. (details and details[n] or '')
      if own ~= text then
        text, entry = own, string.sub(own, 1, 1) .. at .. string.sub(own, 2)
      end
      entries[2 * n - 1], entries[2 * n] = marked[n], entry
      if keeps[n] ~= last_keep then
        last_keep, last_end = keeps[n], string.format('%.0f', now + keeps[n])
      end
      ends[2 * n - 1], ends[2 * n] = last_end, marked[n]
      noted[#noted + 1] = marked[n]
    end
    if #marked > 0 then
      redis.call('ZADD', keeping, unpack(ends))
      redis.call('HSET', results, unpack(entries))
    end
  end
  if #noted > 0 then
    forget_results(now, math.min(2 * #noted, OLD_MOST))
    publish_results('done', noted)
  end
end
