--[[
redrive_settle: remove dead letters that are stored in another topic, and let go of those that were refused there. The last of
three steps, after redrive_hold and redrive_send.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   DeadQueue      zset  member -> time of death, epoch ms
KEYS[3]   records        hash  member -> record
KEYS[4]   failures       hash  member -> failure entry
KEYS[5]   audit          zset  open numbers of audited messages
KEYS[6]   large bodies   hash  member and 8 bytes of the record -> body
KEYS[7]   settled even   set   members settled in even turns of the dedup window
KEYS[8]   settled odd    set   the same for odd turns
KEYS[9]   arrivals       zset  member -> when it went to another topic, epoch ms minus 9e15 (and entries of redrive_send)
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3..] pairs of member and token (21 bytes), and s stored there or r refused there; at most 1000 pairs
Returns   a letter for each: 1 removed, r let go of, 0 not in the DeadQueue, or not held under this token
Cost      O(n log L)
Atomic    Only a dead letter is removed that is held under the token that was stored, so one that died again stays. Its number is
          accounted for, and if its sender keeps its id, that is remembered as settled, and for 30 days as gone to another topic.
          Works while Redis is at maxmemory. Sent twice with one number, it gives the first answer.
]]
--- @include "lib/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/drop"
--- @include "lib/holds"
--- @include "lib/member"
--- @include "lib/replay"
--- @include "lib/settled"
--- @include "lib/writes"
local slot, dead = KEYS[1], KEYS[2]
local now = clock(ARGV[1])
local before = replayed(slot, ARGV[2])
if before then
  return before
end
local created, audited, chunk, dedup_ms, settled_turn = unpack(redis.call('HMGET', slot, 'created', 'audited', 'chunk',
  'dedup_ms', 'settled_turn'))
if not created then
  fail('GONE', slot)
end
if #ARGV < 4 or #ARGV > 2002 or #ARGV % 2 == 1 then
  fail('ARG', 'count')
end
redis.call('HLEN', KEYS[3])
redis.call('HLEN', KEYS[4])
redis.call('ZCARD', KEYS[5])
redis.call('HLEN', KEYS[6])
redis.call('ZCARD', KEYS[9])
local window, turn = tonumber(dedup_ms or 0), tonumber(settled_turn)
if window > 0 then
  check_settled_sets(KEYS[7], KEYS[8], window, turn, now)
end
local letters, stored, let_go, seen = {}, {}, {}, {}
for i = 3, #ARGV, 2 do
  local entry, letter = ARGV[i], '0'
  local id, token = string.sub(entry, 1, MEMBER), string.sub(entry, MEMBER + 1)
  if #entry ~= MEMBER + 8 or (ARGV[i + 1] ~= 's' and ARGV[i + 1] ~= 'r') then
    fail('ARG', 'entry')
  end
  local died = not seen[id] and redis.call('ZSCORE', dead, id)
  if died and hold_of(slot, id, died) == token then
    seen[id] = true
    letter = ARGV[i + 1] == 's' and '1' or 'r'
    local removed = letter == '1' and stored or let_go
    removed[#removed + 1] = id
  end
  letters[#letters + 1] = letter
end
if #stored + #let_go > 0 then
  allow_oom(dead)
  drop_holds(slot, let_go)
  if #stored > 0 then
    redis.call('ZREM', dead, unpack(stored))
    drop_for_good(slot, KEYS[3], KEYS[6], KEYS[4], audited and KEYS[5], tonumber(chunk), stored, now, true)
    redis.call('HINCRBY', slot, 'redriven', #stored)
    local kept = kept_ids(stored)
    if kept then
      if window > 0 then
        remember_settled(slot, KEYS[7], KEYS[8], window, turn, now, kept)
      end
      note_departures(KEYS[9], now, kept)
    end
  end
  remember(slot, ARGV[2], now, table.concat(letters))
end
return table.concat(letters)
