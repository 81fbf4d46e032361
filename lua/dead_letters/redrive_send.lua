--[[
redrive_send: store dead letters of another topic, each letter once. This is the second of three
steps, after redrive_hold and before redrive_settle. A replay stores acked messages again with this
script alone: such messages have new members. `failures`, `merge`, `audit`, `bodies`,
`results` and `keeping` are for messages that drop_lowest drops, `prepare` is for a hand-over to a
sleeping consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it. Another stamp is an error.
ARGV[5]   again          ''    or 1: refusals are not noted, so that the caller may try again
ARGV[6..] three arguments for each dead letter: its member and token (21 bytes), the first 4 bytes
          of its record, and its record from byte 9 on, as for send. If the caller cannot store a
          letter, the second argument is t (too large) or x (unreadable), and the third is ''. At
          most 1000 letters, 16 MiB in all.
Returns   {the server's time in epoch ms, a character for each letter}. The characters are: s
          stored, by this call or an earlier call; c another message has this id, or had it within
          the dedup window; f the slot is full (max_length); p sends are paused; t or x as given.
Cost      O(n log L), n = letters, L = messages waiting in the slot
Atomic    The outcome for a member and token is final, except a refusal that is not noted. Each
          later call returns it again, even if the message has been settled since. `arrivals` has it
          as a score. The score of a stored message is 9e15 plus the time in epoch s. When its dead
          letter has been removed, the caller replaces this score by the time of that. The score of
          a refused message is negative: 10 times the time in epoch ms, plus the position of its
          character in cfptx. An outcome is forgotten an hour after the removal or the refusal
          (lib/dead_letters/arrivals). Redis refuses the first write at maxmemory.
]]
--- @keys slot store records settled0 settled1 failures merge audit bodies prepare arrivals results keeping
--- @include "lib/dead_letters/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/records/record_bytes"
--- @include "lib/slot_fields"
local REFUSALS = 'cfptx' -- outcomes of refused letters; an arrival has the position of one
local ENTRY = MEMBER + 8 -- bytes of member and token
local FIRST, EACH = 6, 3 -- first argument of the letters, and number of arguments for each
local now = clock(ARGV[1])
local n = (#ARGV - FIRST + 1) / EACH
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
local outcomes, new_arrivals = {}, {} -- new arrivals: scores and members in turn
local positions, members, parts = {}, {}, {} -- of letters to be stored; parts: heads and rests
local serves_sleepers = false

-- Return the member and token of letter i, its head and its rest.
local function letter_at(i)
  local at = FIRST + EACH * (i - 1)
  return unpack(ARGV, at, at + EACH - 1)
end

-- Set the outcome of letter i, and note it as an arrival with this score.
local function set_outcome(i, outcome, score)
  outcomes[i] = outcome
  new_arrivals[#new_arrivals + 1] = string.format('%.17g', score)
  new_arrivals[#new_arrivals + 1] = letter_at(i)
end

-- Refuse letter i.
local function refuse(i, outcome)
  if ARGV[5] == '' then
    local position = string.find(REFUSALS, outcome, 1, true)
    set_outcome(i, outcome, -(now * 10 + position))
  else
    outcomes[i] = outcome
  end
end

-- Return the outcome that an earlier call had for a member and token, or nil.
local function earlier_outcome(entry)
  local score = tonumber(redis.call('ZSCORE', arrivals, entry))
  if not score then
    return nil
  elseif score > 0 then
    return 's'
  end
  local position = -score % 10
  return string.sub(REFUSALS, position, position)
end

-- Return why a new letter is refused, or nil if it can be stored.
local function refusal_of(head)
  if #head == 1 then
    return head
  elseif fields[PAUSED_SEND] then
    return 'p'
  elseif #positions >= room then
    return 'f'
  end
end

for i = 1, n do
  local entry, head, rest = letter_at(i)
  if #entry ~= ENTRY or (#head ~= HEAD and head ~= 't' and head ~= 'x') then
    fail('ARG', 'entry')
  end
  outcomes[i] = earlier_outcome(entry)
  local refusal = not outcomes[i] and refusal_of(head)
  if refusal then
    refuse(i, refusal)
  elseif not outcomes[i] then
    positions[#positions + 1] = i
    members[#members + 1] = string.sub(entry, 1, MEMBER)
    parts[#parts + 1], parts[#parts + 2] = head, rest
  end
end
if #positions > 0 then
  --- @include "lib/send/store_messages"
  local count, stored = #positions, {}
  for i = 1, #parts do
    members[count + i] = parts[i]
  end
  local batch = { given = members, at = 0, count = count, large = false }
  local reply
  reply, serves_sleepers = store_messages(batch, fields, now)
  local codes = reply[2] -- '' if all are stored
  for i = 1, count do
    local code = codes == 'F' and codes or string.sub(codes, i, i)
    if code == '' or code == 's' then
      set_outcome(positions[i], 's', ARRIVED + math.floor(now / 1000))
      stored[#stored + 1] = string.sub(letter_at(positions[i]), 1, MEMBER)
    else
      refuse(positions[i], code == 'F' and 'f' or 'c')
    end
  end
  if #stored > 0 then
    redis.call('ZREM', arrivals, unpack(stored)) -- they are no longer in another topic
  end
end
if #new_arrivals > 0 then
  note_arrivals(now, new_arrivals)
else
  --- @include "lib/writes"
  write_again(slot, 'created', ARGV[4])
end
if serves_sleepers then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[2], ARGV[3], now)
end
return { now, table.concat(outcomes) }
