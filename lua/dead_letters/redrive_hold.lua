--[[
redrive_hold: hold dead letters for another topic, and return their records. This is the first of
three steps. The next steps are redrive_send, in the other topic, and redrive_settle.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   token                8 bytes that name this attempt
ARGV[3]   topic                the name of the other topic
ARGV[4]   died_by        ''    or epoch ms: only letters that died until then
ARGV[5..] pairs of member (13 bytes) and index of the slot in the other topic, at most 1000 pairs.
Returns   {the server's time in epoch ms, a character for each pair, and token, index and record of
          each letter that is held}. The characters are: 1 held, 0 not in the DeadQueue or died
          later, m on its way to a third topic, x without a readable record.
Cost      O(n), at most 4 MiB of records. Members beyond that are not read, and the answer is
          shorter.
Atomic    Nothing moves. A letter that is already held for this topic keeps its token and index,
          which are returned. So all callers that move it agree where it goes. A second run gives
          the same answer.
]]
--- @keys slot dead records
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/records/record"
--- @include "lib/dead_letters/holds"
--- @include "lib/member"
local PAIRS_FROM = 5 -- first argument of the pairs
local now = clock(ARGV[1])
local token, topic = ARGV[2], ARGV[3]
if not redis.call('HGET', slot, 'created') then
  fail('GONE', slot)
end
if #token ~= TOKEN then
  fail('ARG', 'token')
end
if not string.find(topic, '^[%w._-]+$') then
  fail('ARG', 'topic')
end
local n = (#ARGV - PAIRS_FROM + 1) / 2
if n < 1 or n > MOST or n % 1 > 0 then
  fail('ARG', 'count')
end
local died_by = ARGV[4] == '' and math.huge or whole_number(ARGV[4], 0, NUMBER_MOST, 'died_by')
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', records)
local outcomes, reply, new_holds, seen, bytes, held = {}, { now, '' }, {}, {}, 0, 0

-- Return nil, the time of death and the record of a dead letter; or an outcome if it is not there.
local function look_up(id)
  local died = not seen[id] and redis.call('ZSCORE', dead, id)
  if not died or tonumber(died) > died_by then
    return '0'
  end
  local record = redis.call('HGET', records, id)
  if not record or #record < FIXED then
    return 'x'
  end
  return nil, died, record
end

-- Hold a dead letter, unless it is held already, and add it to the reply. Return its outcome.
local function hold(id, index, died, record)
  local its_token, its_index, its_topic = hold_of(id, died)
  if not its_token then
    its_token, its_index, its_topic = token, index, topic
    new_holds[#new_holds + 1] = hold_field(id)
    new_holds[#new_holds + 1] = token .. died .. ' ' .. index .. ' ' .. topic
  end
  if its_topic ~= topic then
    return 'm'
  end
  held = held + 1
  reply[#reply + 1], reply[#reply + 2] = its_token, tonumber(its_index)
  reply[#reply + 1] = record
  return '1'
end

for i = PAIRS_FROM, #ARGV, 2 do
  local id, index = ARGV[i], ARGV[i + 1]
  whole_number(index, 0, 1023, 'index')
  if #id ~= MEMBER then
    fail('ARG', 'id')
  end
  local outcome, died, record = look_up(id)
  if not outcome then
    bytes = bytes + #record
    if bytes > READ_BYTES and held > 0 then
      break
    end
    seen[id] = true
    outcome = hold(id, index, died, record)
  end
  outcomes[#outcomes + 1] = outcome
end
if #new_holds > 0 then
  local added = redis.call('HSET', slot, unpack(new_holds))
  redis.call('HINCRBY', slot, 'holds', added)
end
reply[2] = table.concat(outcomes)
return reply
