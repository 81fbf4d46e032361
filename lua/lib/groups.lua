--[[
Groups: of each group of a slot at most so many messages are out, which means that they may be taken or are in flight. The
others are held behind them, and one of them goes out when one of those is settled, dead, cancelled or gone in another way.

Held messages are in the StoreQueue like all that wait, with scores below 0. A group has a lane there for each priority of which
it holds messages:

  place - (lane + 1) * 2^32        the lane's messages, in the order in which they were sent

A lane is in use while a message is in it, and its number is used again after that. Those that are out have the score of a
priority, whose fraction is not their place but a tag: the virtual time of start-time fair queueing (Goyal, Vin, Cheng, 1996).
A group, or all groups of one share together, move their own time on by UNIT / weight with each message; the slot's time, the
field `vtime`, is the tag of the message that was taken last. So each of them gets its share, and one that comes or comes back
begins a round behind.

A group has a field in the slot's hash, `/<name>`, while one of its messages is out, or while it is paused or held by a dead
letter: its entry. A share that was named has `%<share>`. Where all is settled, nothing is left. The field `groups` of the slot
says what holds for all of its groups; a slot without it reads and writes none of this.

A message whose time has not come, in the StoreQueue by that time, is not out; but the retry of an ordered group is: the group
waits for it.
]]
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/envelope"
--- @include "lib/score"
local UNIT, ROUND_PART = 64, 0.6180339887498949 -- of virtual time in a round; places of groups in it are that far apart
local LANES, LANE_STEP, LANE_TRIES = 2097152, 1296573, 100 -- 2^21; prime to that
local LANE_FIRST = 2147483648 -- the place of the first message in a lane: 2^31, so that there is room before it
local GROUPS_RESTART = 1073741824 -- a quarter of what the scores of the largest priorities can order
local UNGROUPED_MOST = 1000 -- messages without a group that are out
local SINGLE, PAUSED_GROUP, HELD_BY_DEAD = 1, 2, 4 -- flags of an entry
local NOBODY = '\0\0\0\0\0\0\0\0\0\0\0\0\0' -- in place of a member: none is out
local GROUP_HEADER = '\169rmq-group' -- as msgpack has it
local NO_NUMBER = '\0\0\0\0' -- in place of the acceptance number, which a record on its way in lacks
local HEADER_BYTES = 10 -- of that, and of the one that rmq.Audit adds

-- Where the value of a text in msgpack begins and ends.
local function packed_text(text, at)
  local kind = string.byte(text, at) or 0
  if kind == 217 then
    return at + 2, at + 1 + (string.byte(text, at + 1) or 0)
  end
  return at + 1, at + kind - 160
end

-- The (group, weight, share or nil) of a message; '' and 1 where it has none. rmq/kernel/core/groups.py writes the header, which is
-- the first one, or follows that of rmq.Audit: a name, or \1, weight, \1, share, \1 and the name.
local function group_of(record)
  local at = record and headers_at(record)
  if not at then
    return '', 1
  end
  at = at + (string.byte(record, at + 2) == 222 and 5 or 3) -- past the size of the headers and that of their map
  if string.sub(record, at, at + HEADER_BYTES - 1) == '\169rmq-audit' then
    local _, last = packed_text(record, at + HEADER_BYTES)
    at = last + 1
  end
  if string.sub(record, at, at + HEADER_BYTES - 1) ~= GROUP_HEADER then
    return '', 1
  end
  local text = string.sub(record, packed_text(record, at + HEADER_BYTES))
  if string.byte(text, 1) == 1 then
    local weight, share, name = string.match(text, '^\1(%d+)\1([^\1]*)\1(.*)$')
    return name, tonumber(weight), share ~= '' and share or nil
  end
  return text, 1
end

-- What a script knows of the groups of a slot. `setting`: the field `groups` of the slot.
local function open_groups(slot, store, setting)
  local most, ordered, hold = string.match(setting, '^(%d+):([01]):([01])$')
  local vtime, lane, count = unpack(redis.call('HMGET', slot, 'vtime', 'lane', 'groups_made'))
  return { slot = slot, store = store, most = tonumber(most), ordered = ordered == '1', hold_dead = hold == '1',
    vtime = tonumber(vtime or 0), lane = tonumber(lane or 0), count = tonumber(count or 0), lane_was = lane, count_was = count,
    entries = {}, shares = {}, share_names = {}, order = {}, add = {}, pending = {}, departed = {}, departing = {},
    moved = 0, fresh = {} }
end

-- Let the virtual time begin anew where it has gone far and no message waits that it orders.
local function restart_groups(groups)
  if groups.vtime > GROUPS_RESTART and redis.call('ZCOUNT', groups.store, PRIORITY_MIN, '(' .. PRIORITY_END) == 0 then
    groups.vtime, groups.restarts = 0, true
  end
end

-- How many messages of a group may be out.
local function most_of(groups, name)
  return name == '' and UNGROUPED_MOST or groups.most
end

-- An entry from its text:
--   flags (1 byte), finish (8), weight (1), the member that is out and its priority (13, 3) or how many are out (2), its share
--   (1, n), then its lanes, those of larger priorities first: priority (3), lane (3), place of the next message (4)
local function parse_entry(groups, name, text)
  local flags, finish, weight = struct.unpack('>BdB', text)
  local entry, at = { name = name, flags = flags, finish = finish, weight = weight, lanes = {}, out = 0 }, 11
  if flags % 2 == SINGLE then
    local member = string.sub(text, at, at + 12)
    entry.member = member ~= NOBODY and member or nil
    entry.out, entry.priority, at = entry.member and 1 or 0, struct.unpack('>I3', text, at + 13), at + 16
  else
    entry.out, at = struct.unpack('>I2', text, at), at + 2
  end
  local share = string.byte(text, at)
  if share > 0 then
    entry.share = string.sub(text, at + 1, at + share)
  end
  at = at + 1 + share
  while at < #text do
    local priority, lane, place = struct.unpack('>I3I3I4', text, at)
    entry.lanes[#entry.lanes + 1], at = { priority = priority, lane = lane, place = place }, at + 10
  end
  -- After counters have begun anew.
  entry.finish = math.min(entry.finish, groups.vtime + UNIT / weight * (most_of(groups, name) + 1))
  return entry
end

-- The text of an entry.
local function entry_text(entry)
  local parts = { struct.pack('>BdB', entry.flags, entry.finish, entry.weight) }
  if entry.flags % 2 == SINGLE then
    parts[2] = (entry.member or NOBODY) .. struct.pack('>I3', entry.priority or 0)
  else
    parts[2] = struct.pack('>I2', entry.out)
  end
  parts[3] = entry.share and string.char(#entry.share) .. entry.share or '\0'
  for i = 1, #entry.lanes do
    local lane = entry.lanes[i]
    parts[3 + i] = struct.pack('>I3I3I4', lane.priority, lane.lane, lane.place)
  end
  return table.concat(parts)
end

-- Read the entries of groups that are not known yet.
local function load_groups(groups, names)
  local fields, missing = {}, {}
  for i = 1, #names do
    local name = names[i]
    if groups.entries[name] == nil then
      groups.entries[name] = false
      fields[#fields + 1], missing[#missing + 1] = '/' .. name, name
    end
  end
  for from = 1, #fields, MOST do
    local texts = redis.call('HMGET', groups.slot, unpack(fields, from, math.min(#fields, from + MOST - 1)))
    for i = 1, #texts do
      local name = missing[from + i - 1]
      groups.entries[name] = texts[i] and parse_entry(groups, name, texts[i])
    end
  end
end

-- Note that an entry is to be written.
local function touch(groups, entry)
  if not entry.touched then
    entry.touched = true
    groups.order[#groups.order + 1] = entry
  end
end

-- The entry of a group, a new one if there is none.
local function entry_of(groups, name, weight, share)
  load_groups(groups, { name })
  local entry = groups.entries[name]
  if not entry then
    groups.count = groups.count + 1
    local single = most_of(groups, name) == 1
    entry = { name = name, flags = single and SINGLE or 0, weight = weight, share = share, lanes = {}, out = 0, is_new = true,
      finish = groups.vtime + UNIT / weight * (1 + groups.count * ROUND_PART % 1) }
    groups.entries[name] = entry
  end
  entry.weight = weight
  return entry
end

-- What counts the virtual time of an entry: itself, or its share.
local function clock_of(groups, entry)
  if not entry.share then
    return entry
  end
  local share = groups.shares[entry.share]
  if not share then
    local text = redis.call('HGET', groups.slot, '%' .. entry.share)
    share = { finish = entry.finish, users = 0 }
    if text then
      share.finish, share.users = struct.unpack('>dI4', text)
      share.finish = math.min(share.finish, groups.vtime + UNIT / entry.weight * (MOST + 1))
    end
    groups.shares[entry.share] = share
    groups.share_names[#groups.share_names + 1] = entry.share
  end
  if entry.is_new and not entry.counted then
    share.users, entry.counted = share.users + 1, true
  end
  return share
end

-- Let a message go out: it may be taken.
local function go_out(groups, entry, id, priority)
  local timer = clock_of(groups, entry)
  local tag = math.max(groups.vtime, timer.finish)
  timer.finish = math.max(timer.finish, groups.vtime - UNIT) + UNIT / entry.weight
  entry.out = entry.out + 1
  if entry.flags % 2 == SINGLE then
    entry.member, entry.priority = id, priority
  end
  groups.add[#groups.add + 1], groups.add[#groups.add + 2] = ordered_text(priority, math.floor(tag)), id
  groups.moved, groups.pending[id] = groups.moved + 1, true
  touch(groups, entry)
end

-- The range of scores of a lane.
local function lane_range(lane)
  return string.format('%.0f', -(lane + 1) * WORD), string.format('(%.0f', -lane * WORD)
end

-- A lane that nothing is in.
local function free_lane(groups)
  local lane = groups.lane
  for try = 1, LANE_TRIES do
    lane = (lane + (try == 1 and 1 or LANE_STEP)) % LANES
    local low, high = lane_range(lane)
    if not groups.fresh[lane] and #redis.call('ZRANGEBYSCORE', groups.store, low, high, 'LIMIT', 0, 1) == 0 then
      groups.lane, groups.fresh[lane] = lane, true
      return lane
    end
  end
  fail('GROUPS', groups.slot)
end

-- Hold a message in its lane; `front`: before all others there, else behind them.
local function hold_back(groups, entry, id, priority, front)
  local at, lane = 1, nil
  while entry.lanes[at] and entry.lanes[at].priority > priority do
    at = at + 1
  end
  -- A lane in which the places are used up is followed by another one.
  while not front and entry.lanes[at + 1] and entry.lanes[at + 1].priority == priority do
    at = at + 1
  end
  lane = entry.lanes[at]
  if not lane or lane.priority ~= priority or not front and lane.place >= WORD - 1 then
    lane = { priority = priority, lane = free_lane(groups), place = LANE_FIRST, first = LANE_FIRST }
    table.insert(entry.lanes, entry.lanes[at] and entry.lanes[at].priority == priority and at + 1 or at, lane)
  end
  local place = lane.place
  if front then
    if not lane.first then
      local low, high = lane_range(lane.lane)
      local first = redis.call('ZRANGEBYSCORE', groups.store, low, high, 'WITHSCORES', 'LIMIT', 0, 1)[2]
      lane.first = first and tonumber(first) + (lane.lane + 1) * WORD or lane.place
    end
    place = math.max(0, lane.first - 1)
    lane.first = place
  else
    lane.place = place + 1
  end
  groups.add[#groups.add + 1], groups.add[#groups.add + 2] = string.format('%.0f', place - (lane.lane + 1) * WORD), id
  touch(groups, entry)
end

-- Whether nothing of a group goes out.
local function is_stopped(entry)
  return entry.flags % (2 * PAUSED_GROUP) >= PAUSED_GROUP or entry.flags % (2 * HELD_BY_DEAD) >= HELD_BY_DEAD
end

-- Write what goes into the StoreQueue, and return how many messages went out since the last time.
local function write_members(groups)
  local add, moved = groups.add, groups.moved
  for from = 1, #add, 2 * MOST do
    redis.call('ZADD', groups.store, unpack(add, from, math.min(#add, from + 2 * MOST - 1)))
  end
  groups.add, groups.moved, groups.pending = {}, 0, {}
  return moved
end

-- Let a message of a group come in, new or due: it goes out, or is held behind those that are.
local function enter_group(groups, name, weight, share, id, priority)
  local entry = entry_of(groups, name, weight, share)
  if entry.out < most_of(groups, name) and #entry.lanes == 0 and not is_stopped(entry) then
    go_out(groups, entry, id, priority)
    return
  end
  local head = entry.member
  if head and priority > (entry.priority or 0) and not is_stopped(entry) then
    local score = groups.pending[head] and PRIORITY_MIN or tonumber(redis.call('ZSCORE', groups.store, head) or 0)
    if score >= PRIORITY_MIN and score < PRIORITY_END then -- it waits, and the new one goes first
      groups.moved, groups.pending[head] = groups.moved - 1, nil
      hold_back(groups, entry, head, entry.priority, true)
      entry.member, entry.out = nil, 0
      go_out(groups, entry, id, priority)
      return
    end
  end
  hold_back(groups, entry, id, priority)
end

-- Let a message come in that is new, or whose time has come. The retry of an ordered group has been out all the while.
local function return_group(groups, name, weight, share, id, priority)
  load_groups(groups, { name })
  local entry = groups.entries[name]
  if entry and entry.member == id then
    groups.add[#groups.add + 1], groups.add[#groups.add + 2] = ordered_text(priority, math.floor(groups.vtime)), id
    groups.moved, groups.pending[id] = groups.moved + 1, true
  else
    enter_group(groups, name, weight, share, id, priority)
  end
end

-- Note that a message which was out is no more. `died`: it became a dead letter.
local function leave_group(groups, name, id, died)
  local left = groups.departed[name]
  if not left then
    left = { count = 0, ids = {}, died = false }
    groups.departed[name] = left
    groups.departing[#groups.departing + 1] = name
  end
  left.count, left.ids[id], left.died = left.count + 1, true, left.died or died
end

-- Let held messages of a group go out, as many as may.
local function fill_group(groups, entry)
  local most = most_of(groups, entry.name)
  while entry.out < most and entry.lanes[1] and not is_stopped(entry) do
    local lane, need = entry.lanes[1], most - entry.out
    local low, high = lane_range(lane.lane)
    local held = redis.call('ZRANGEBYSCORE', groups.store, low, high, 'LIMIT', 0, need + 1)
    for i = 1, math.min(need, #held) do
      go_out(groups, entry, held[i], lane.priority)
    end
    if #held <= need then
      table.remove(entry.lanes, 1)
    end
  end
end

-- The tag in the score of a message that waits in a priority.
local function tag_of(score)
  local priority = math.floor(score)
  local _, exponent = math.frexp(priority)
  return (0.5 - (score - priority)) / math.ldexp(1, exponent - 53)
end

-- Move the virtual time of the slot on to the tag of a message that was taken, by its score.
local function note_taken(slot, score)
  if score >= PRIORITY_MIN and score < PRIORITY_END then
    local tag = tag_of(score)
    if tag > tonumber(redis.call('HGET', slot, 'vtime') or 0) then
      redis.call('HSET', slot, 'vtime', string.format('%.0f', tag))
    end
  end
end

-- Write the entries that have changed. Returns whether messages went out.
local function write_groups(groups)
  local moved = write_members(groups)
  local set, gone = {}, {}
  for i = 1, #groups.order do
    local entry = groups.order[i]
    entry.touched = nil
    if entry.out == 0 and #entry.lanes == 0 and not is_stopped(entry) then
      gone[#gone + 1] = '/' .. entry.name
      groups.entries[entry.name] = false
      local share = entry.share and clock_of(groups, entry)
      if share then
        share.users = share.users - 1
      end
    else
      set[#set + 1], set[#set + 2] = '/' .. entry.name, entry_text(entry)
      entry.is_new = nil
    end
  end
  groups.order = {}
  for i = 1, #groups.share_names do
    local name = groups.share_names[i]
    local share = groups.shares[name]
    if share.users > 0 then
      set[#set + 1], set[#set + 2] = '%' .. name, struct.pack('>dI4', share.finish, share.users)
    else
      gone[#gone + 1] = '%' .. name
    end
  end
  groups.shares, groups.share_names = {}, {}
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
  for from = 1, #set, 2 * MOST do
    redis.call('HSET', groups.slot, unpack(set, from, math.min(#set, from + 2 * MOST - 1)))
  end
  for from = 1, #gone, MOST do
    redis.call('HDEL', groups.slot, unpack(gone, from, math.min(#gone, from + MOST - 1)))
  end
  return moved > 0
end

-- Let the next ones go out for all that has left. Returns whether messages went out.
local function settle_groups(groups)
  local names = groups.departing
  load_groups(groups, names)
  for i = 1, #names do
    local entry, left = groups.entries[names[i]], groups.departed[names[i]]
    if entry then
      if entry.flags % 2 == SINGLE then
        if entry.member and left.ids[entry.member] then
          entry.member, entry.out = nil, 0
        end
      else
        entry.out = math.max(0, entry.out - left.count)
      end
      if left.died and groups.hold_dead and names[i] ~= '' then
        entry.flags = entry.flags + (entry.flags % (2 * HELD_BY_DEAD) >= HELD_BY_DEAD and 0 or HELD_BY_DEAD)
      end
      touch(groups, entry)
      fill_group(groups, entry)
    end
  end
  groups.departed, groups.departing = {}, {}
  return write_groups(groups)
end

-- Give a waiting message another priority, which its record has already. One that is out keeps its tag.
local function change_priority(slot, store, setting, record, id, score, priority)
  local groups = open_groups(slot, store, setting)
  local name, weight, share = group_of(record)
  load_groups(groups, { name })
  local entry = groups.entries[name]
  if score < 0 then
    enter_group(groups, name, weight, share, id, priority)
  else
    redis.call('ZADD', store, ordered_text(priority, math.floor(math.max(0, tag_of(score)))), id)
    if entry and entry.member == id then
      entry.priority = priority
      touch(groups, entry)
    end
  end
  write_groups(groups)
end

-- Let a dead letter come in again: first of its group where that is held because of it, else as a new message.
local function redrive_group(groups, record, id, priority)
  local name, weight, share = group_of(record)
  load_groups(groups, { name })
  local entry = groups.entries[name]
  if entry and is_stopped(entry) then
    hold_back(groups, entry, id, priority, true)
  else
    enter_group(groups, name, weight, share, id, priority)
  end
end
