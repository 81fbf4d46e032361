-- Storing the ends of members of batches, in their own slot. member_ends reads them.
--- @needs results keeping
--- @include "lib/results/keep_mark"

-- Store the ends of members: the field `b<member>` of `results` has the letter of the outcome and
-- the batch. The score in `keeping` is infinite, so forget_results never removes it.
-- - ended: for each member its name, its record, and a text that begins with the letter
local function note_members(ended)
  local entries, ends = {}, {}
  for i = 1, #ended do
    local id, record, text = unpack(ended[i])
    local batch = batch_of(record)
    if batch then
      entries[#entries + 1], entries[#entries + 2] = 'b' .. id, string.sub(text, 1, 1) .. batch
      ends[#ends + 1], ends[#ends + 2] = '+inf', 'b' .. id
    end
  end
  if #entries > 0 then
    redis.call('ZADD', keeping, unpack(ends))
    redis.call('HSET', results, unpack(entries))
  end
end
