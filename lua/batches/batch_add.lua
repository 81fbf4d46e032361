--[[
batch_add: make messages members of a batch, before they are sent.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   topic                of the messages
ARGV[3]   by             ''    or the id of a member that adds them, in 26 characters
ARGV[4..] ids, 1 to 1000, in 26 characters each, all different
Returns   {state, a character for each id}: n a new member, . or ! an open member already, or the
          letter of its end. The state is '' for a batch that does not exist. If the batch is
          closed and some ids are new, nothing is added. The characters are then ''
Cost      O(n)
Atomic    A closed batch takes new members only from a member that is open, and never after it was
          cancelled. Redis refuses new members at maxmemory. A second run finds the members open.
          It changes only #touched: the caller sends these members next, so batch_end must not end
          them as lost.
]]
--- @keys slot batch
--- @include "lib/bounds"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
local IDS_FROM, ID_CHARS = 4, 26
local now = clock(ARGV[1])
local topic, by = ARGV[2], ARGV[3]
local n = #ARGV - IDS_FROM + 1
if n < 1 or n > MOST then
  fail('ARG', 'ids')
end
if not string.find(topic, '^[%w._-]+$') or #topic > 128 then
  fail('ARG', 'topic')
end
for i = IDS_FROM, #ARGV do
  if #ARGV[i] ~= ID_CHARS then
    fail('ARG', 'id')
  end
end
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state, topics, cancelled, open_count, all, adding_member =
  unpack(redis.call('HMGET', batch, '#state', '#topics', '#cancelled', '#open', '#all', by))
if not state then
  return { '', '' }
end

-- Return the position of the topic in the list of the batch's topics, and the list with this topic.
local function topic_position()
  local position = 0
  for name in string.gmatch(topics, '%S+') do
    position = position + 1
    if name == topic then
      return position, topics
    end
  end
  return position + 1, topics .. (position > 0 and ' ' or '') .. topic
end

local members = redis.call('HMGET', batch, unpack(ARGV, IDS_FROM))
local position, names = topic_position()
local letters, new_fields, is_any_open = {}, {}, false
for i = 1, n do
  letters[i] = members[i] and string.sub(members[i], 1, 1) or 'n'
  is_any_open = is_any_open or letters[i] == '.'
  if not members[i] then
    new_fields[#new_fields + 1], new_fields[#new_fields + 2] =
      ARGV[IDS_FROM + i - 1], '.' .. position
  end
end
local is_added_by_member = by ~= '' and adding_member and string.find(adding_member, '^[.!]')
local takes_members = state == 'o' or is_added_by_member
if #new_fields > 0 then
  if not takes_members or cancelled then
    return { state, '' }
  end
  redis.call('HSET', batch, unpack(new_fields))
  local added = #new_fields / 2
  redis.call('HSET', batch, '#open', open_count + added, '#all', all + added, '#topics', names,
    '#touched', now)
elseif is_any_open then
  write_again(batch, '#touched', now)
end
return { state, table.concat(letters) }
