--[[
redrive_send: store dead letters of another topic, each once. The second of three steps;
redrive_hold came before it. `failures`, `merge`, `audit` and `bodies` are for messages that
drop_lowest drops, `prepare` for a hand-over to a sleeping consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it; another stamp is an error
ARGV[5..] n times: member and token (21 bytes), the first 4 bytes of the record, the rest of it from
          byte 9 on, as send takes it; or member and token, t too large or x unreadable, '': it is
          not to be stored. At most 1000, in all 16 MiB
Returns   {the server's time in epoch ms, a letter for each: s stored, now or earlier, c another
          message has this id, or had it inside the dedup window, f the slot's share of max_length
          is reached, p sends are paused, t or x as given}
Cost      O(n log L), L = messages waiting in the slot
Atomic    The answer for a member and token is final: `arrivals` has 9e15 plus the time for one that
          was stored, and for one that was refused minus (10 times the time plus the place of its
          letter in cfptx). Whoever comes later with the same gets the same answer, though the
          message may be settled by then. The caller writes the time over that of a stored one when
          the dead letter is gone; an hour later, as an hour after a refusal, it is forgotten
          (lib/dead_letters/arrivals). The first write is one that Redis refuses at maxmemory.
]]
--- @keys slot store records settled0 settled1 failures merge audit bodies prepare arrivals
--- @include "lib/dead_letters/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/slot_fields"
local LETTERS, ENTRY = 'cfptx', MEMBER + 8
local now, channel, index = clock(ARGV[1]), ARGV[2], ARGV[3]
local n = (#ARGV - 4) / 3
if n < 1 or n > 1000 or n % 1 > 0 then
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
local letters, fresh, members, parts, noted = {}, {}, {}, {}, {}
local function refuse(i, letter)
  letters[i] = letter
  noted[#noted + 1] = string.format('%.17g', -(now * 10 + string.find(LETTERS, letter, 1, true)))
  noted[#noted + 1] = ARGV[2 + 3 * i]
end
for i = 1, n do
  local entry, head = ARGV[2 + 3 * i], ARGV[3 + 3 * i]
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
    parts[#parts + 1], parts[#parts + 2] = head, ARGV[4 + 3 * i]
  end
end
if #fresh > 0 then
  --- @include "lib/send/store_messages"
  local count, back = #fresh, {}
  for i = 1, #parts do
    members[count + i] = parts[i]
  end
  local batch = { given = members, at = 0, count = count, large = false }
  local stored = store_messages(batch, fields, now, channel, index)[2]
  for i = 1, count do
    local letter = stored == '' and 's' or stored == 'F' and 'F' or string.sub(stored, i, i)
    if letter == 's' then
      letters[fresh[i]] = 's'
      noted[#noted + 1] = string.format('%.0f', ARRIVED + math.floor(now / 1000))
      noted[#noted + 1] = ARGV[2 + 3 * fresh[i]]
      back[#back + 1] = string.sub(ARGV[2 + 3 * fresh[i]], 1, MEMBER)
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
return { now, table.concat(letters) }
