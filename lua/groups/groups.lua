--[[
groups: read groups of a slot that have messages out, are paused, or are held by a dead letter.
Changes nothing.

ARGV[1]   cursor               0 at first, then the cursor of the last answer; a cursor of another
          server begins again
ARGV[2]   limit                1 to 100, about as many groups as a page has
ARGV[3..] name, member         only this group, and '' or a message of it: no page
Returns   {cursor, 0 at the end; 1 if this is a first page, else 0; how many held messages of the
          group go before the member, -1 if it is not held; then for each group {name, flags (1: one
          message at a time, 2: paused, 4: held by a dead letter), messages out, weight, its share
          or '', the message that is out and its score in the StoreQueue ('' if it is in flight, or
          several are out), how many are held, {its lanes}, {the first held message of each of its
          16 largest priorities}, the dead letter that holds it or ''}}
Cost      O(p log L), p = priorities of held messages in the groups of the page, at most 16 for each
          group
Atomic    Reads only. A group that is there from the first page to the last is on at least one of
          them, as in audit_scan.
]]
--- @keys slot store
--- @include "lib/check"
--- @include "lib/groups/groups"
--- @include "lib/scan_cursor"
local PAGE_MOST, PRIORITIES_MOST = 100, 16

-- The first messages of the largest priorities of a lane, behind those of other lanes.
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

-- How many held messages of these lanes go before one of this score; -1 where it is in none of
-- them.
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
