-- Let messages leave their groups, for scripts that settle, drop or delay them.
--- @needs slot store records
--- @include "lib/groups/group_alone"
--- @include "lib/member"
--- @include "lib/scores/score_ranges"
-- Entries of a page, and pages that are searched for messages without a record.
local LOST_PAGE, LOST_PAGES = 250, 4

-- Return by member the name of the group of which it is out, for members whose records are lost. A
-- group may not be found in a slot with many entries, or if several of its messages are out.
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

-- Return the names of the groups of messages, whose records still exist. `chunk`: how many records
-- are read at once.
--- @inline
local function names_of_groups(ids, chunk)
  local names, found, batch, first = {}, nil, {}, 1 - chunk -- batch: records from `first` on
  for i = 1, #ids do
    if i == first + chunk then
      first = i
      local last = math.min(#ids, first + chunk - 1)
      batch = redis.call('HMGET', records, unpack(ids, first, last))
    end
    local record = batch[i - first + 1] or ''
    local name = plain_group(string.byte(record, 1) or 0, record, FIXED + 1)
    if #record < FIXED then
      found = found or groups_by_member(ids)
      name = found[ids[i]] or ''
    elseif not name then
      name = group_of(record)
    end
    names[i] = name
  end
  return names
end

-- Note that messages leave their groups, while their records still exist. Returns nil if the slot
-- has no groups, else a function. The caller calls that function after the messages have left their
-- queue. It lets the next messages out, and returns whether there were any.
-- `how`: nil, or a table of
--   died: true, or the set of the messages that become dead letters, or nil
--   later: the set of the messages that wait for their time from now on, or nil; an ordered group
--     waits for them
--   scores: nil if all messages are in flight; else their scores in the StoreQueue, by position. A
--     message that is held or waits for its time is not out
--   leave_plainly: leave_plain_groups or nil; only without died, later and scores
local function leaving_groups(ids, how)
  if #ids == 0 then
    return nil
  end
  local setting, chunk, vtime = unpack(redis.call('HMGET', slot, 'groups', 'chunk', 'vtime'))
  if not setting then
    return nil
  end
  redis.call('ZCARD', store)
  local names = names_of_groups(ids, tonumber(chunk))
  how = how or {}
  local died, later, scores, leave_plainly = how.died, how.later, how.scores, how.leave_plainly
  return function()
    local any_out, others = false, nil
    if leave_plainly then
      any_out, others = leave_plainly(names, ids, tonumber(vtime or 0))
    end
    if others and #others == 0 then
      return any_out
    end
    --- @include "lib/groups/groups"
    local groups = open_groups(setting)
    for n = 1, #(others or ids) do
      local i = others and others[n] or n
      local id, name = ids[i], names[i]
      local in_flight, score = true, 0
      if scores and scores[i] then
        in_flight, score = false, tonumber(scores[i])
      end
      local ordered = groups.ordered and name ~= ''
      local stays_out = ordered and later and later[id]
      local is_dead = died == true or died and died[id]
      -- Of messages that wait for their time, only the retry of an ordered group is out.
      local was_out = in_flight or score >= 0 and (score < PRIORITY_END or ordered)
      if was_out and not stays_out then
        leave_group(groups, name, id, is_dead)
      elseif score < 0 or is_dead then
        leave_lane(groups, name, id, is_dead)
      end
    end
    return settle_groups(groups) or any_out
  end
end
