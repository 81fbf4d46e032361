--[[
groups: read groups of a slot that have messages out, are paused, or are held by a dead letter. Changes nothing.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  member -> score
ARGV[1]   cursor               0 at first, then the cursor of the last answer; one of another server begins anew
ARGV[2]   limit                1 to 100, about so many groups a page
ARGV[3..] name, member         only this group, and '' or a message of it: no page
Returns   {cursor, 0 at the end; 1 if this is a first page, else 0; how many held messages of the group go before the member,
          -1 where it is not held; then for each group {name, flags (1: one message at a time, 2: paused, 4: held by a dead
          letter), messages out, weight, its share or '', the message that is out and its score in the StoreQueue ('': it is
          in flight, or several are out), then for each priority of held messages, the largest first: priority, lane, how
          many, the first one}}
Cost      O(p log L), p = priorities of which the groups of the page hold messages; of one group 16 at most
Atomic    Reads only. A group that is there from the first page to the last is on one of them, some come twice; as audit_scan.
]]
--- @include "lib/check"
--- @include "lib/groups"
--- @include "lib/scan_cursor"
local PAGE_MOST, LANES_MOST = 100, 16
local created, setting = unpack(redis.call('HMGET', KEYS[1], 'created', 'groups'))
if not created then
  fail('GONE', KEYS[1])
end
local limit = whole_number(ARGV[2], 1, PAGE_MOST, 'limit')
local cursor, server = read_cursor(ARGV[1])
redis.call('ZCARD', KEYS[2])
if not setting then
  return { '0', 1, -1 }
end
local groups, page = open_groups(KEYS[1], KEYS[2], setting), { '0', {} }
if ARGV[3] then
  local text = redis.call('HGET', KEYS[1], '/' .. ARGV[3])
  page[2] = text and { '/' .. ARGV[3], text } or {}
else
  page = redis.call('HSCAN', KEYS[1], cursor, 'MATCH', '/*', 'COUNT', limit)
end
local member_score = ARGV[4] and ARGV[4] ~= '' and tonumber(redis.call('ZSCORE', KEYS[2], ARGV[4]) or 0) or 0
local reply = { write_cursor(page[1], server), cursor == '0' and 1 or 0, member_score < 0 and 0 or -1 }
for i = 1, #page[2], 2 do
  local entry = parse_entry(groups, string.sub(page[2][i], 2), page[2][i + 1])
  local row = { entry.name, entry.flags, entry.out, entry.weight, entry.share or '', entry.member or '',
    entry.member and redis.call('ZSCORE', KEYS[2], entry.member) or '' }
  local passed = member_score >= 0
  local lanes = lanes_of(entry)
  for l = 1, math.min(LANES_MOST, #lanes) do
    local lane, n = lanes[l][2], #row
    local low, high = lane_range(lane)
    row[n + 1], row[n + 2], row[n + 3] = lanes[l][1], lane, redis.call('ZCOUNT', KEYS[2], low, high)
    row[n + 4] = redis.call('ZRANGEBYSCORE', KEYS[2], low, high, 'LIMIT', 0, 1)[1] or ''
    if not passed then
      passed = member_score >= tonumber(low) and member_score < -lane * WORD
      reply[3] = reply[3] + (passed and redis.call('ZCOUNT', KEYS[2], low, string.format('(%.17g', member_score)) or row[n + 3])
    end
  end
  reply[#reply + 1] = row
end
return reply
