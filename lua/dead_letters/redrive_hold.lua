--[[
redrive_hold: hold dead letters that are to go to another topic, and return their records. The first of three steps; then come
redrive_send, in the other topic, and redrive_settle.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   token                8 bytes that name this attempt
ARGV[3]   topic                the name of the other topic
ARGV[4]   died_by        ''    or epoch ms: only those that died until then
ARGV[5..] pairs of member (13 bytes) and index of the slot in the other topic, at most 1000 pairs
Returns   {the server's time in epoch ms, a letter for each: 1 held, 0 not in the DeadQueue, or died later, m on its way to a third
          topic, x it has no record, then token, index and record for each that is held}
Cost      O(n), at most 4 MiB of records; members beyond that are not looked at, and the answer is shorter
Atomic    Nothing moves. A letter that is held for this topic already keeps its token and index, which are returned: so all who
          move it agree where it goes. Sent twice, it gives the same answer.
]]
--- @keys slot dead records
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/record"
--- @include "lib/dead_letters/holds"
--- @include "lib/member"
local now, token, topic = clock(ARGV[1]), ARGV[2], ARGV[3]
if not redis.call('HGET', slot, 'created') then
  fail('GONE', slot)
end
if #token ~= 8 then
  fail('ARG', 'token')
end
if not string.find(topic, '^[%w._-]+$') then
  fail('ARG', 'topic')
end
if #ARGV < 6 or #ARGV > 2004 or #ARGV % 2 == 1 then
  fail('ARG', 'count')
end
local died_by = ARGV[4] == '' and math.huge or whole_number(ARGV[4], 0, NUMBER_MOST, 'died_by')
redis.call('HLEN', records)
local letters, reply, new, seen, bytes, held = {}, { now, '' }, {}, {}, 0, 0
for i = 5, #ARGV, 2 do
  local id, index, letter = ARGV[i], ARGV[i + 1], '0'
  whole_number(index, 0, 1023, 'index')
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  local died = not seen[id] and redis.call('ZSCORE', dead, id)
  if died and tonumber(died) <= died_by then
    local record = redis.call('HGET', records, id)
    letter = 'x'
    if record and #record >= FIXED then
      bytes = bytes + #record
      if bytes > READ_BYTES and held > 0 then
        break
      end
      seen[id] = true
      local its_token, its_index, its_topic = hold_of(id, died)
      if not its_token then
        its_token, its_index, its_topic = token, index, topic
        new[#new + 1], new[#new + 2] = hold_field(id), token .. died .. ' ' .. index .. ' ' .. topic
      end
      letter = 'm'
      if its_topic == topic then
        letter, held = '1', held + 1
        reply[#reply + 1], reply[#reply + 2], reply[#reply + 3] = its_token, tonumber(its_index), record
      end
    end
  end
  letters[#letters + 1] = letter
end
if #new > 0 then
  local added = redis.call('HSET', slot, unpack(new))
  redis.call('HINCRBY', slot, 'holds', added)
end
reply[2] = table.concat(letters)
return reply
