--[[
Groups: a limited number of messages of each group are *out*: they may be received, or are in
flight. The group's other messages are *held*. When a message that is out is settled, dead,
cancelled or removed in another way, the next held message of the group goes out.

Held messages are in the StoreQueue with scores below 0, so no consumer receives them. A group that
holds messages has a *lane*, a range of such scores. A score is a double. Its exponent and the first
bits of its fraction say the lane:

  -2^(lane / 2048) * (1 + f)     f: 11 bits of the lane, 20 of the priority, 21 of the place,
                                 inverted

Within a lane, a larger priority has a lower score. Within a priority, an earlier message has a
lower score. A group may hold messages of any number of priorities. If a lane has no place left, the
group gets another lane. Messages of the older lane go first in their priority.

A lane's number is used again when no message is in the lane. A message that is out has the score of
its priority, with a tag as the fraction: the virtual time of start-time fair queueing (Goyal, Vin,
Cheng, 1996). Each message moves the time of its group, or of the groups that share a key, on by
UNIT / weight. The slot's time, the field `vtime`, is the tag of the last message received. So every
group gets its part of the deliveries, and a group that comes back begins one round behind.

The entry of a group also has its first held messages, as far as they have one priority: the
*front*. The next message then needs no search. The entry says the largest priority that is held. If
the front is empty, that priority is an upper bound.

The entry is the field `/<name>` of the slot's hash. It exists while a message of the group is out,
and while the group is paused or stopped by a dead letter. A named share has `%<share>`. The field
`groups` of the slot has the settings of all its groups. A slot without that field reads and writes
none of this.

A delayed message is in the StoreQueue by its due time and is not out. The retry of an ordered group
is out, and the group waits for it.
]]
--- @needs slot store
--- @include "lib/bounds"
--- @include "lib/groups/group_alone"
--- @include "lib/groups/lanes"
--- @include "lib/member"
--- @include "lib/scores/score"
--- @include "lib/writes"
local FEW_ADDED = 16 -- scores and members, of which fewer are added as they are

-- Return the state of a slot's groups within one script call. `setting`: the field `groups` of the
-- slot. The functions below change this table. It has
--   most, ordered, hold_dead: the settings
--   vtime, lane, count: counters of the slot; lane_was, count_was: as Redis has them
--   restarts: whether `vtime` has to be written
--   entries: by name, a text or a table, or false if the group has no entry
--   changed: names of entries that have to be written; touched: the set of these names
--   shares: by name, a share in use; share_names: names of these shares. Nil if no share is in use
--   add, move: scores and members for the StoreQueue; `move` is for messages that leave a lane
--   moved, pending: how many messages went out since the last write, and the set of them
--   departing: names of groups that messages have left
--   departed: by name, the list of members that were out; died: by name, a member that died
--   lost: by name, whether the front has to be read again
--   used_lanes: lanes that this call uses
--   firsts: by the start of a range of a lane, the place of its first message
--   priority, step: the arguments and the result of the last call of step_of
local function open_groups(setting)
  local most, ordered, hold = string.match(setting, '^(%d+):([01]):([01])$')
  local vtime, lane, count = unpack(redis.call('HMGET', slot, 'vtime', 'lane', 'groups_made'))
  return { most = tonumber(most), ordered = ordered == '1', hold_dead = hold == '1',
    vtime = tonumber(vtime or 0), lane = tonumber(lane or 0), count = tonumber(count or 0),
    lane_was = lane, count_was = count, entries = {}, touched = {}, changed = {},
    add = {}, move = {}, pending = {}, departed = {}, departing = {}, died = {}, lost = {},
    moved = 0, used_lanes = {}, firsts = {} }
end

-- Restart the virtual time if it is large and no message waits that it orders.
local function restart_groups(groups)
  if groups.vtime <= GROUPS_RESTART then
    return
  end
  if redis.call('ZCOUNT', store, PRIORITY_MIN, '(' .. PRIORITY_END) == 0 then
    groups.vtime, groups.restarts = 0, true
  end
end

-- Return how many messages of a group may be out.
local function most_of(groups, name)
  return name == '' and UNGROUPED_MOST or groups.most
end

-- Parse the text of an entry.
local function parse_entry(groups, name, text)
  local flags, finish, weight, member, priority, lane_priority, lane, place, share, front =
    struct.unpack(GROUP_ENTRY, text)
  local share_at, out = GROUP_ENTRY_BYTES + 1, 0
  local front_at = share_at + share
  local others_at = front_at + front
  if flags % 2 == SINGLE then
    out = member == NOBODY and 0 or 1
  else
    out = struct.unpack('>I2', member)
  end
  -- After a restart of the virtual time, `finish` is far ahead.
  local latest = groups.vtime + UNIT / weight * (most_of(groups, name) + 2)
  return { name = name, flags = flags, finish = finish < latest and finish or latest,
    weight = weight, out = out, member = out == 1 and flags % 2 == SINGLE and member or nil,
    priority = priority, lane_priority = lane_priority, lane = lane, place = place,
    share = share > 0 and string.sub(text, share_at, front_at - 1) or nil,
    front = string.sub(text, front_at, others_at - 1), others = string.sub(text, others_at) }
end

-- Format an entry as text.
local function entry_text(entry)
  local flags, share, member = entry.flags, entry.share or '', entry.member
  if not member then
    member = flags % 2 == SINGLE and NOBODY or struct.pack('>I2', entry.out) .. NO_BYTES
  end
  return struct.pack(GROUP_ENTRY, flags, entry.finish, entry.weight, member, entry.priority,
    entry.lane_priority, entry.lane, entry.place, #share, #entry.front)
    .. share .. entry.front .. entry.others
end

-- Read the entries of groups that were not read before, as texts. entry_in parses a text when it is
-- needed.
local function load_groups(groups, names)
  local fields, missing, entries = {}, {}, groups.entries
  for i = 1, #names do
    local name = names[i]
    if entries[name] == nil then
      entries[name] = false
      fields[#fields + 1], missing[#missing + 1] = '/' .. name, name
    end
  end
  if #fields == 0 then
    return
  end
  local texts = redis.call('HMGET', slot, unpack(fields))
  for i = 1, #texts do
    entries[missing[i]] = texts[i]
  end
end

-- Return the entry of a group that was loaded, as a table; nil if it has none.
local function entry_in(groups, name)
  local entry = groups.entries[name]
  if type(entry) == 'string' then
    entry = parse_entry(groups, name, entry)
    groups.entries[name] = entry
  end
  return entry or nil
end

-- Mark the entry of a group as changed.
local function touch(groups, name)
  if not groups.touched[name] then
    groups.touched[name] = true
    groups.changed[#groups.changed + 1] = name
  end
end

-- Create an entry for a group.
local function new_entry(groups, name, weight, share)
  groups.count = groups.count + 1
  local finish = groups.vtime + UNIT / weight * (1 + groups.count * ROUND_PART % 1)
  local entry = { name = name, flags = most_of(groups, name) == 1 and SINGLE or 0, finish = finish,
    weight = weight, share = share, out = 0, is_new = true, priority = 0, lane_priority = 0,
    lane = 0, place = 0, front = '', others = '' }
  groups.entries[name] = entry
  return entry
end

-- Return the share of an entry that has one: its virtual time, and the number of groups that use
-- it.
local function share_of(groups, entry)
  groups.shares, groups.share_names = groups.shares or {}, groups.share_names or {}
  local share = groups.shares[entry.share]
  if not share then
    share = { finish = entry.finish, users = 0 }
    local text = redis.call('HGET', slot, '%' .. entry.share)
    if text then
      local finish
      finish, share.users = struct.unpack('>dI4', text)
      share.finish = math.min(finish, groups.vtime + UNIT / entry.weight * (MOST + 1))
    end
    groups.shares[entry.share] = share
    groups.share_names[#groups.share_names + 1] = entry.share
  end
  if entry.is_new and not entry.counted then
    share.users, entry.counted = share.users + 1, true
  end
  return share
end

-- Compute the fair-queue tag of the group's next message, and advance the virtual time of the group
-- or its share.
--- @inline
local function next_tag(groups, entry)
  local clock_owner, vtime = entry, groups.vtime
  if entry.share then
    clock_owner = share_of(groups, entry)
  end
  local finish, oldest_start = clock_owner.finish, vtime - UNIT
  clock_owner.finish = (finish > oldest_start and finish or oldest_start) + UNIT / entry.weight
  return math.floor(finish > vtime and finish or vtime)
end

-- Let a message go out: it may be received. `add`: groups.add for a new message, groups.move for a
-- message that leaves a lane.
local function go_out(groups, entry, add, id, priority)
  local tag = next_tag(groups, entry)
  entry.out = entry.out + 1
  if entry.flags % 2 == SINGLE then
    entry.member, entry.priority = id, priority
  end
  add[#add + 1], add[#add + 2] = ordered_text(priority, tag), id
  groups.moved, groups.pending[id] = groups.moved + 1, true
  touch(groups, entry.name)
end

-- Hold a message behind all others of its priority. `first`: true puts it before them; 'redriven'
-- puts it before them and behind earlier redriven messages.
local function hold_back(groups, entry, id, priority, first)
  local lane, place
  if entry.lane_priority == 0 then
    entry.lane, entry.place = free_lane(groups), LANE_FIRST
  end
  if first then
    lane, place = place_before(groups, entry, priority, first == 'redriven')
  else
    lane, place = next_place(groups, entry)
  end
  local add = groups.add
  local score = score_of_place(lane, priority, place)
  note_held(entry, id, priority, first)
  add[#add + 1], add[#add + 2] = score, id
  touch(groups, entry.name)
end

-- Return whether a group is paused or stopped by a dead letter.
local function is_stopped(entry)
  return entry.flags % MORE >= PAUSED_GROUP
end

-- Write the new scores of messages that leave lanes. A message that somebody has deleted from the
-- StoreQueue does not come back.
local function write_moves(groups)
  local move = groups.move
  for from = 1, #move, UNPACKED do
    redis.call('ZADD', store, 'XX', unpack(move, from, math.min(#move, from + UNPACKED - 1)))
  end
  groups.move = {}
end

-- Write new messages into the StoreQueue, and return how many went out since the last write.
local function write_members(groups)
  local add, moved = groups.add, groups.moved
  if #add >= FEW_ADDED then
    add_many(store, add)
  elseif #add > 0 then
    redis.call('ZADD', store, unpack(add))
  end
  write_moves(groups)
  groups.add, groups.moved, groups.pending = {}, 0, {}
  return moved
end

-- Let a message go out instead of the message of its group that is out, and hold that message
-- again. Return false, and change nothing, if that message does not wait in a priority.
local function go_before(groups, entry, id, priority)
  local out_id = entry.member
  local may_step_back = groups.pending[out_id] -- this call let it out: its score is not written
  if not may_step_back then
    local score = tonumber(redis.call('ZSCORE', store, out_id) or 0)
    may_step_back = score >= PRIORITY_MIN and score < PRIORITY_END
  end
  if not may_step_back then
    return false
  end
  groups.moved, groups.pending[out_id] = groups.moved - 1, nil
  hold_back(groups, entry, out_id, entry.priority, true)
  entry.member, entry.out = nil, 0
  go_out(groups, entry, groups.add, id, priority)
  return true
end

-- Return the step of the scores of a priority. The step of the last priority is remembered.
--- @inline
local function step_of(groups, priority)
  if groups.priority ~= priority then
    local step = score_step(priority)
    groups.priority, groups.step = priority, step
  end
  return groups.step
end

-- Let a plain message into its ordered group. Return false, and add nothing, if the entry of the
-- group is not plain. `text`: the entry, or false.
--- @inline
local function enter_plainly(groups, name, text, id, priority)
  local score, entry
  if text then
    local lane = 0
    if string.sub(text, LANE_AT, LANE_AT + 2) == NO_LANE then
      lane = free_lane(groups)
    end
    score, entry = held_entry(text, lane, id, priority)
    if not score then
      return false
    end
  else
    local tag
    groups.count = groups.count + 1
    entry, tag = first_entry(groups.count, groups.vtime, id, priority, 1)
    local step = step_of(groups, priority)
    score = score_text(priority, 0.5 - (tag - tag % 1) * step)
    groups.moved, groups.pending[id] = groups.moved + 1, true
  end
  local add = groups.add
  add[#add + 1], add[#add + 2] = score, id
  groups.entries[name] = entry
  touch(groups, name)
  return true
end

-- Return whether enter_plainly may be tried for a message.
--- @inline
local function may_be_plain(groups, name, weight, share)
  local has_defaults = weight == 1 and not share and name ~= ''
  return has_defaults and groups.most == 1 and type(groups.entries[name]) ~= 'table'
    and groups.vtime < GROUPS_RESTART
end

-- Let a message that is new or due into its group: it goes out, or is held behind other messages.
-- The entry of the group was loaded.
local function enter_group(groups, name, weight, share, id, priority)
  local may_enter_plainly = may_be_plain(groups, name, weight, share)
  if may_enter_plainly then
    local has_entered = enter_plainly(groups, name, groups.entries[name], id, priority)
    if has_entered then
      return
    end
  end
  local entry = entry_in(groups, name) or new_entry(groups, name, weight, share)
  entry.weight = weight
  if share and not entry.share and entry.out == 0 and entry.lane_priority == 0 then
    entry.share, entry.is_new = share, true -- the group was paused before its first message
  end
  if entry.share and entry.is_new then
    share_of(groups, entry) -- counts the group as a user
  end
  local stopped = is_stopped(entry)
  if entry.lane_priority == 0 and not stopped and entry.out < most_of(groups, name) then
    go_out(groups, entry, groups.add, id, priority)
    return
  end
  local has_gone_out = false
  if entry.member and not stopped and priority > math.max(entry.priority, entry.lane_priority) then
    has_gone_out = go_before(groups, entry, id, priority)
  end
  if not has_gone_out then
    hold_back(groups, entry, id, priority)
  end
end

-- Let a due message into its group. The retry of an ordered group was out while it waited.
local function return_group(groups, name, weight, share, id, priority)
  local entry = entry_in(groups, name)
  if not entry or entry.member ~= id then
    enter_group(groups, name, weight, share, id, priority)
    return
  end
  if is_stopped(entry) then
    entry.member, entry.out = nil, 0
    hold_back(groups, entry, id, priority, true)
    return
  end
  local add = groups.add
  add[#add + 1], add[#add + 2] = ordered_text(priority, math.floor(groups.vtime)), id
  groups.moved, groups.pending[id], entry.priority = groups.moved + 1, true, priority
  touch(groups, name)
end

-- Return the list of members that were out and have left a group, which the caller may extend.
--- @inline
local function departed_from(groups, name)
  local departed = groups.departed[name]
  if not departed then
    departed = {}
    groups.departed[name] = departed
    groups.departing[#groups.departing + 1] = name
  end
  return departed
end

-- Note that a message which was out has left its group. `died`: it became a dead letter.
local function leave_group(groups, name, id, died)
  local departed = departed_from(groups, name)
  departed[#departed + 1] = id
  if died then
    groups.died[name] = groups.died[name] or id
  end
end

-- Note that a message which was not out has left its group. `died`: it became a dead letter.
local function leave_lane(groups, name, id, died)
  departed_from(groups, name)
  groups.died[name] = groups.died[name] or died and id
  groups.lost[name] = true
end

-- Search for `need` held messages, let them go out, and fill the front again.
local function go_out_of_lane(groups, entry, need)
  local ids, priorities = first_held(groups, entry, need + FRONT_MOST + 1)
  local count = math.min(need, #ids)
  for i = 1, count do
    go_out(groups, entry, groups.move, ids[i], priorities[i])
  end
  set_front(entry, ids, priorities, count + 1)
end

-- Let as many held messages of a group go out as the limit allows.
local function fill_group(groups, entry)
  local need = most_of(groups, entry.name) - entry.out
  while need > 0 and #entry.front > 0 do
    local id = string.sub(entry.front, 1, MEMBER)
    entry.front = string.sub(entry.front, MEMBER + 1)
    go_out(groups, entry, groups.move, id, entry.lane_priority)
    need = need - 1
    if #entry.front == 0 and entry.flags < MORE then
      clear_lane(entry)
    end
  end
  if need > 0 and entry.lane_priority > 0 then
    write_moves(groups) -- first_held must not find the messages that have gone out
    go_out_of_lane(groups, entry, need)
  end
end

-- Append the fields and values of shares to `set`, and the fields of unused shares to `gone`.
local function write_shares(groups, set, gone)
  for i = 1, #groups.share_names do
    local name = groups.share_names[i]
    local share = groups.shares[name]
    if share.users > 0 then
      set[#set + 1], set[#set + 2] = '%' .. name, struct.pack('>dI4', share.finish, share.users)
    else
      gone[#gone + 1] = '%' .. name
    end
  end
end

-- Return what has to be written of changed entries: fields and values, and fields to be removed.
local function changes_of(groups)
  local set, gone, changed, entries = {}, {}, groups.changed, groups.entries
  for i = 1, #changed do
    local name = changed[i]
    local entry = entries[name]
    if type(entry) == 'string' then
      set[#set + 1], set[#set + 2] = '/' .. name, entry
    elseif entry and (entry.out > 0 or entry.lane_priority > 0 or is_stopped(entry)) then
      set[#set + 1], set[#set + 2] = '/' .. name, entry_text(entry)
      entry.is_new = nil
    else
      gone[#gone + 1] = '/' .. name
      entries[name] = false
      if entry and entry.share then
        local share = share_of(groups, entry)
        share.users = share.users - 1
      end
    end
  end
  groups.changed, groups.touched = {}, {}
  return set, gone
end

-- Write all changes to groups. Return whether messages went out.
local function write_groups(groups)
  local moved, set, gone = write_members(groups), changes_of(groups)
  if groups.shares then
    write_shares(groups, set, gone)
    groups.shares, groups.share_names = nil, nil
  end
  if groups.restarts then
    set[#set + 1], set[#set + 2], groups.restarts = 'vtime', 0, nil
  end
  if groups.lane ~= tonumber(groups.lane_was or 0) then
    set[#set + 1], set[#set + 2] = 'lane', groups.lane
    groups.lane_was = groups.lane
  end
  if groups.count ~= tonumber(groups.count_was or 0) then
    set[#set + 1], set[#set + 2] = 'groups_made', groups.count
    groups.count_was = groups.count
  end
  change_fields(slot, set, gone)
  return moved > 0
end

-- Update an entry after messages have left its group. `departed`: members that were out.
local function reduce_group(groups, entry, departed)
  if entry.flags % 2 ~= SINGLE then
    entry.out = math.max(0, entry.out - #departed)
  end
  for i = 1, entry.member and #departed or 0 do
    if departed[i] == entry.member then
      entry.member, entry.out = nil, 0
    end
  end
  if groups.lost[entry.name] then
    look_up_front(groups, entry)
  end
  local already = entry.flags % MORE >= STOPPED_BY_DEAD
  if groups.died[entry.name] and groups.hold_dead and entry.name ~= '' and not already then
    entry.flags = entry.flags + STOPPED_BY_DEAD
    redis.call('HINCRBY', slot, 'groups_held', 1)
    redis.call('HSET', slot, '!' .. entry.name, groups.died[entry.name])
  end
end

-- Let the next messages go out of each group that messages have left. Return whether any went out.
local function settle_groups(groups)
  local names = groups.departing
  load_groups(groups, names)
  for i = 1, #names do
    local name = names[i]
    local entry = entry_in(groups, name)
    if not entry and groups.died[name] and groups.hold_dead and name ~= '' then
      entry = new_entry(groups, name, 1) -- a delayed message has died; none of the group was out
    end
    if entry then
      reduce_group(groups, entry, groups.departed[name])
      touch(groups, name)
      if not is_stopped(entry) then
        fill_group(groups, entry)
      end
    end
  end
  groups.departed, groups.departing = {}, {}
  return write_groups(groups)
end

-- Give a waiting message another priority. Its record has that priority already. A message that is
-- out keeps its tag.
local function change_priority(setting, record, id, score, priority)
  local groups = open_groups(setting)
  local name, weight, share = group_of(record)
  load_groups(groups, { name })
  local entry = entry_in(groups, name)
  if score < 0 then
    enter_group(groups, name, weight, share, id, priority)
    write_members(groups)
    entry = entry_in(groups, name)
    look_up_front(groups, entry)
  elseif score >= PRIORITY_MIN then
    local tag = tag_of(score)
    redis.call('ZADD', store, ordered_text(priority, math.floor(math.max(0, tag))), id)
  end
  if entry and entry.member == id then
    entry.priority = priority
    touch(groups, entry.name)
  end
  write_groups(groups)
end

-- Let a dead letter into its group again, as a new message. In a stopped group it is held before
-- all messages that were not redriven.
local function redrive_group(groups, record, id, priority)
  local name, weight, share = group_of(record)
  load_groups(groups, { name })
  local entry = entry_in(groups, name)
  if entry and is_stopped(entry) then
    hold_back(groups, entry, id, priority, 'redriven')
  else
    enter_group(groups, name, weight, share, id, priority)
  end
end
