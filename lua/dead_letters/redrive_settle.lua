--[[
redrive_settle: remove dead letters that are stored in another topic, and release dead letters that
were refused there. This is the last of three steps, after redrive_hold and redrive_send.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3..] pairs of member and token (21 bytes), and s stored there or r refused there; at most 1000
          pairs.
Returns   a character for each pair: 1 removed, r released, 0 not in the DeadQueue, or not held
          under this token
Cost      O(n log L)
Atomic    A dead letter is removed only if it is held under the token that was stored, so a letter
          that died again stays. Its number is accounted for. If its sender keeps its id, the id is
          remembered as settled, and for 30 days as gone to another topic. Works while Redis is at
          maxmemory. A call that is sent twice gets the first answer again.
]]
--- @keys slot dead records failures audit bodies settled0 settled1 arrivals results keeping
--- @include "lib/dead_letters/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/dead_letters/holds"
--- @include "lib/records/drop_for_good"
--- @include "lib/member"
--- @include "lib/replay"
--- @include "lib/results/results"
--- @include "lib/send/dedup_window"
--- @include "lib/writes"
local PAIRS_FROM = 3 -- first argument of the pairs
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, audited, chunk, dedup_ms, settled_turn = unpack(redis.call('HMGET', slot, 'created',
  'audited', 'chunk', 'dedup_ms', 'settled_turn'))
if not created then
  fail('GONE', slot)
end
local n = (#ARGV - PAIRS_FROM + 1) / 2
if n < 1 or n > MOST or n % 1 > 0 then
  fail('ARG', 'count')
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', records)
redis.call('HLEN', failures)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
redis.call('ZCARD', arrivals)
local window, turn = tonumber(dedup_ms or 0), tonumber(settled_turn)
if window > 0 then
  check_settled_sets(window, turn, now)
end
local outcomes, stored, released, seen = {}, {}, {}, {}
for i = PAIRS_FROM, #ARGV, 2 do
  local entry, outcome = ARGV[i], '0'
  local id, token = string.sub(entry, 1, MEMBER), string.sub(entry, MEMBER + 1)
  if #entry ~= MEMBER + TOKEN or (ARGV[i + 1] ~= 's' and ARGV[i + 1] ~= 'r') then
    fail('ARG', 'entry')
  end
  local died = not seen[id] and redis.call('ZSCORE', dead, id)
  if died and hold_of(id, died) == token then
    seen[id] = true
    outcome = ARGV[i + 1] == 's' and '1' or 'r'
    local list = outcome == '1' and stored or released
    list[#list + 1] = id
  end
  outcomes[#outcomes + 1] = outcome
end
local answer = table.concat(outcomes)
if #stored + #released == 0 then
  return answer
end
allow_oom(dead)
drop_holds(released)
if #stored > 0 then
  redis.call('ZREM', dead, unpack(stored))
  drop_results(stored)
  drop_for_good(audited, tonumber(chunk), stored, now, true)
  redis.call('HINCRBY', slot, 'redriven', #stored)
end
local resendable = #stored > 0 and resendable_ids(stored)
if resendable and window > 0 then
  remember_settled(window, turn, now, resendable)
end
if resendable then
  note_departures(now, resendable)
end
remember(ARGV[2], now, answer)
return answer
