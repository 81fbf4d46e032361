-- Messages of groups that are out and leave, for scripts that settle, drop or delay them.
--- @needs slot store records
--- @include "lib/groups/group_entries"
--- @include "lib/member"
--- @include "lib/scores/score_ranges"
local LOST_PAGE, LOST_PAGES = 250, 4 -- entries of a slot that are looked at for messages without a record

-- The groups of which these members are out, by member. Their records, which named the groups, are lost. In a slot with more
-- entries than are looked at, or with groups of which several are out at a time, a group may not be found.
local function groups_by_member(ids)
  local wanted, names, cursor = {}, {}, '0'
  for i = 1, #ids do
    wanted[ids[i]] = true
  end
  for _ = 1, LOST_PAGES do
    local page = redis.call('HSCAN', slot, cursor, 'MATCH', '/*', 'COUNT', LOST_PAGE)
    for i = 1, #page[2], 2 do
      local member = string.sub(page[2][i + 1], MEMBER_AT, MEMBER_AT + MEMBER - 1)
      if wanted[member] then
        names[member] = string.sub(page[2][i], 2)
      end
    end
    cursor = page[1]
    if cursor == '0' then
      break
    end
  end
  return names
end

-- Note that messages leave their groups, while their records are there. Returns nil where the slot has no groups; else a function
-- to call when they are out of their queue: it lets the next ones out, and returns whether there were any.
--   died: true, or the set of those that become dead letters, or nil
--   later: nil, or the set of those that wait for their time from now on: an ordered group waits for them
--   scores: nil where all are in flight; else those in the StoreQueue, by position: messages that are held or wait for their time
--   may be among them, and leave nothing
local function leaving_groups(ids, died, later, scores)
  if #ids == 0 then
    return nil
  end
  local setting, page = unpack(redis.call('HMGET', slot, 'groups', 'chunk'))
  if not setting then
    return nil
  end
  --- @include "lib/groups/groups"
  redis.call('ZCARD', store)
  local groups, chunk, at, names = open_groups(setting), tonumber(page), 0, nil
  for from = 1, #ids, chunk do
    local batch = redis.call('HMGET', records, unpack(ids, from, math.min(#ids, from + chunk - 1)))
    for i = 1, #batch do
      at = at + 1
      local id, score = ids[at], scores and tonumber(scores[at]) or PRIORITY_MIN
      local name
      name = plain_group(string.byte(batch[i] or '', 1) or 0, batch[i] or '', FIXED + 1)
      if not batch[i] or #batch[i] < FIXED then
        names = names or groups_by_member(ids)
        name = names[id] or ''
      elseif not name then
        name = group_of(batch[i])
      end
      local ordered = groups.ordered and name ~= ''
      local stays_out = ordered and later and later[id]
      local is_dead = died == true or died and died[id]
      -- Of those that wait for their time, only the retry of an ordered group is out.
      if score >= 0 and not stays_out and (score < PRIORITY_END or ordered) then
        leave_group(groups, name, id, is_dead)
      elseif score < 0 or is_dead then
        leave_lane(groups, name, id, is_dead)
      end
    end
  end
  return function()
    return settle_groups(groups)
  end
end
