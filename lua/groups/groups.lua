--[[
groups: read groups of a slot that have messages out, are paused, or are stopped by a dead letter.
Changes nothing.

ARGV[1]   cursor               0 for the first page, or the cursor of the last answer. With a
          cursor of another server, the scan begins again.
ARGV[2]   limit                1 to 100: approximate number of groups in a page.
ARGV[3..] name, member         to read only this group, not a page; and one of its messages or ''.
Returns   {cursor of the next page, 0 at the end,
           1 for a first page, else 0,
           number of held messages before the member, or -1,
           a list for each group}.
          The list of a group is
          {name,
           flags,
           number of messages out,
           weight,
           share, or '',
           the message out, or '' if several may be out,
           its score in the StoreQueue, or '' if it is in flight,
           number of messages held,
           {lanes},
           {heads}: the first held message of each priority in each lane, at most 16,
           dead letter, or ''}.
          The flags are a sum of 1: one message at a time, 2: paused, 4: stopped by the dead letter.
          The flag 8 says that more messages are held than the entry names.
Cost      O(p log L), p = priorities of held messages in the groups of the page, at most 16 for each
          group, L = messages waiting in the slot
Atomic    Reads only. A group that exists from the first page to the last is on at least one page.
]]
--- @keys slot store
--- @include "lib/check"
--- @include "lib/groups/groups"
--- @include "lib/scan_cursor"
local PAGE_MOST, PRIORITIES_MOST = 100, 16

-- Append the first message of each priority of a lane to `heads`, up to 16 in all lanes. After each
-- head, the search continues behind the last place of its priority.
local function add_heads(lane, heads)
  local low, high = lane_range(lane)
  while #heads < PRIORITIES_MOST do
    local first = redis.call('ZRANGEBYSCORE', store, low, high, 'WITHSCORES', 'LIMIT', 0, 1)
    if not first[1] then
      return
    end
    local _, priority = held_place(tonumber(first[2]))
    local _, last = lane_range(lane, priority)
    heads[#heads + 1], low = first[1], '(' .. last
  end
end

-- Return how many held messages of these lanes are before a score; -1 if no lane has the score.
--
-- A message of an older lane goes first within its priority. For example, the lanes are 1, 2 and 3,
-- from old to new. A score is of priority 5 in lane 2. Then these messages are before it:
--
--   lane 1   priority 5 and larger
--   lane 2   scores below its own
--   lane 3   priority 6 and larger
local function count_ahead(lanes, score)
  local own, priority = held_place(score)
  local ahead, is_older = 0, true
  for i = 1, #lanes do
    local low = lane_range(lanes[i])
    local first, last = lane_range(lanes[i], priority)
    local high = is_older and last or '(' .. first
    if lanes[i] == own then
      high, is_older = string.format('(%.17g', score), false
    end
    ahead = ahead + redis.call('ZCOUNT', store, low, high)
  end
  return is_older and -1 or ahead
end

local created, setting = unpack(redis.call('HMGET', slot, 'created', 'groups'))
if not created then
  fail('GONE', slot)
end
local limit = whole_number(ARGV[2], 1, PAGE_MOST, 'limit')
local cursor, server = read_cursor(ARGV[1])
-- A key of a wrong type stops the script here.
redis.call('ZCARD', store)
if not setting then
  return { '0', 1, -1 }
end
local groups, page = open_groups(setting), { '0', {} }
if ARGV[3] then
  local text = redis.call('HGET', slot, '/' .. ARGV[3])
  page[2] = text and { '/' .. ARGV[3], text } or {}
else
  page = redis.call('HSCAN', slot, cursor, 'MATCH', '/*', 'COUNT', limit)
end
local has_member = ARGV[4] and ARGV[4] ~= ''
local member_score = has_member and tonumber(redis.call('ZSCORE', store, ARGV[4]) or 0) or 0
local reply = { write_cursor(page[1], server), cursor == '0' and 1 or 0, -1 }
for i = 1, #page[2], 2 do
  local entry = parse_entry(groups, string.sub(page[2][i], 2), page[2][i + 1])
  local lanes, heads, held = lanes_of(entry), {}, 0
  for l = 1, #lanes do
    local low, high = lane_range(lanes[l])
    held = held + redis.call('ZCOUNT', store, low, high)
    add_heads(lanes[l], heads)
  end
  if member_score < 0 then
    reply[3] = count_ahead(lanes, member_score)
  end
  local score = entry.member and redis.call('ZSCORE', store, entry.member) or ''
  local dead_letter = redis.call('HGET', slot, '!' .. entry.name) or ''
  reply[#reply + 1] = { entry.name, entry.flags, entry.out, entry.weight, entry.share or '',
    entry.member or '', score, held, lanes, heads, dead_letter }
end
return reply
