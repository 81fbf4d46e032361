-- Messages of groups that are out and leave, for scripts that settle, drop or delay them.
--- @include "lib/score_ranges"

-- Note that messages leave their groups, while their records are there. Returns nil where the slot has no groups; else a function
-- to call when they are out of their queue: it lets the next ones out, and returns whether there were any.
--   dead: true, or the set of those that become dead letters, or nil
--   later: nil, or the set of those that wait for their time from now on: an ordered group waits for them
--   scores: nil where all are in flight; else those in the StoreQueue, by position: messages that are held or wait for their time
--   may be among them, and leave nothing
local function leaving_groups(slot, store, records, ids, dead, later, scores)
  if #ids == 0 then
    return nil
  end
  local setting, page = unpack(redis.call('HMGET', slot, 'groups', 'chunk'))
  if not setting then
    return nil
  end
  --- @include "lib/groups"
  redis.call('ZCARD', store)
  local groups, chunk, at = open_groups(slot, store, setting), tonumber(page), 0
  for from = 1, #ids, chunk do
    local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + chunk - 1)))
    for i = 1, #batch do
      at = at + 1
      local id, score = ids[at], scores and tonumber(scores[at]) or PRIORITY_MIN
      local name
      name = plain_group(string.byte(batch[i] or '', 1) or 0, batch[i] or '', FIXED + 1)
      if not name then
        name = group_of(batch[i])
      end
      local ordered = groups.ordered and name ~= ''
      local stays_out = ordered and later and later[id]
      -- Of those that wait for their time, only the retry of an ordered group is out.
      if score < 0 then
        leave_lane(groups, name, dead == true or dead and dead[id])
      elseif not stays_out and (score < PRIORITY_END or ordered) then
        leave_group(groups, name, id, dead == true or dead and dead[id])
      end
    end
  end
  return function()
    return settle_groups(groups)
  end
end
