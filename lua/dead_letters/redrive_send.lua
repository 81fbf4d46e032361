--[[
redrive_send: store dead letters of another topic, each once. This is the second of three steps;
redrive_hold came before it. `failures`, `merge`, `audit` and `bodies` are for messages that
drop_lowest drops, `prepare` is for a hand-over to a sleeping consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[5..] n times: member and token (21 bytes), the first 4 bytes of the record, the record from
          byte 9 on, as send takes it. For a message that is not to be stored: member and token, t
          (too large) or x (unreadable), ''. At most 1000, in all 16 MiB
Returns   {the server's time in epoch ms, a letter for each: s stored, now or earlier; c another
          message has this id, or had it within the dedup window; f the slot's share of max_length
          is reached; p sends are paused; t or x as given}
Cost      O(n log L), L = messages waiting in the slot
Atomic    The answer for a member and token is final, and every later call with them gets it again,
          even if the message is settled by then. `arrivals` keeps it: 9e15 plus the time for a
          stored message, and for a refused one minus (10 times the time plus the place of its
          letter in cfptx). The caller replaces the number of a stored message by the time at which
          its dead letter was removed. An hour after that, and an hour after a refusal, it is
          forgotten (lib/dead_letters/arrivals). Redis refuses the first write at maxmemory.
]]
--- @keys slot store records settled0 settled1 failures merge audit bodies prepare arrivals
--- @include "lib/dead_letters/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/records/record_bytes"
--- @include "lib/slot_fields"
local LETTERS = 'cfptx' -- of refusals, by their place in an arrival
local ENTRY = MEMBER + 8 -- bytes of member and token
local BEFORE, OF_EACH = 4, 3 -- arguments before the messages, and of each message
local now = clock(ARGV[1])
local n = (#ARGV - BEFORE) / OF_EACH
if n < 1 or n > MOST or n % 1 > 0 then
  fail('ARG', 'count')
end
local fields = read_store_fields('')
if fields[CREATED] ~= ARGV[4] then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
local room = math.huge
if tonumber(fields[CAPACITY]) > 0 and fields[OVERFLOW] ~= 'drop_lowest' then
  room = tonumber(fields[CAPACITY]) - redis.call('ZCARD', store)
end
local serves = false -- whether sleeping consumers are to be served
local letters, noted = {}, {} -- the answer, and arrivals to be noted: scores and members in turn

-- Return member and token, head and rest of message i.
local function message_at(i)
  return unpack(ARGV, BEFORE + OF_EACH * (i - 1) + 1, BEFORE + OF_EACH * i)
end

-- Note that message i is refused.
local function refuse(i, letter)
  local place = string.find(LETTERS, letter, 1, true)
  letters[i] = letter
  noted[#noted + 1] = string.format('%.17g', -(now * 10 + place))
  noted[#noted + 1] = message_at(i)
end

local fresh, members, parts = {}, {}, {} -- messages to be stored: numbers, members, heads and rests
for i = 1, n do
  local entry, head, rest = message_at(i)
  if #entry ~= ENTRY or (#head ~= HEAD and head ~= 't' and head ~= 'x') then
    fail('ARG', 'entry')
  end
  local before = redis.call('ZSCORE', arrivals, entry)
  if before then
    before = tonumber(before)
    local place = -before % 10
    letters[i] = before > 0 and 's' or string.sub(LETTERS, place, place)
  elseif #head == 1 then
    refuse(i, head)
  elseif fields[PAUSED_SEND] then
    refuse(i, 'p')
  elseif #fresh >= room then
    refuse(i, 'f')
  else
    fresh[#fresh + 1] = i
    members[#members + 1] = string.sub(entry, 1, MEMBER)
    parts[#parts + 1], parts[#parts + 2] = head, rest
  end
end
if #fresh > 0 then
  --- @include "lib/send/store_messages"
  local count, back = #fresh, {}
  for i = 1, #parts do
    members[count + i] = parts[i]
  end
  local batch = { given = members, at = 0, count = count, large = false }
  local reply
  reply, serves = store_messages(batch, fields, now)
  local stored = reply[2]
  for i = 1, count do
    local letter = stored == '' and 's' or stored == 'F' and 'F' or string.sub(stored, i, i)
    if letter == 's' then
      local entry = message_at(fresh[i])
      letters[fresh[i]] = 's'
      noted[#noted + 1] = string.format('%.0f', ARRIVED + math.floor(now / 1000))
      noted[#noted + 1] = entry
      back[#back + 1] = string.sub(entry, 1, MEMBER)
    else
      refuse(fresh[i], letter == 'F' and 'f' or 'c')
    end
  end
  if #back > 0 then
    redis.call('ZREM', arrivals, unpack(back))
  end
end
if #noted > 0 then
  note_arrivals(now, noted)
else
  --- @include "lib/writes"
  write_again(slot, 'created', ARGV[4])
end
if serves then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[2], ARGV[3], now)
end
return { now, table.concat(letters) }
