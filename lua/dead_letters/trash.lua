--[[
trash: put dead letters into the trash, from where they can be restored for a time, or delete them.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   keep_ms              how long they can be restored; 0: they are deleted for good now
ARGV[4]   died_by        ''    or epoch ms: only letters that died until then
ARGV[5..] members, at most 1000, 13 bytes each.
Returns   a character for each member: 1 done; 0 not in the DeadQueue, or died later; m not moved,
          because it is on its way to another topic
Cost      O(n log L)
Atomic    Only dead letters move, with their time of death. Record and failure entry stay. The
          end of a member is stored for a batch that waits for it. Works while Redis is at
          maxmemory. A call that is sent twice gets the first answer again.
]]
--- @keys slot dead trash deaths records failures audit bodies results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/replay"
--- @include "lib/results/note_outcomes"
--- @include "lib/dead_letters/holds"
--- @include "lib/dead_letters/trash"
--- @include "lib/writes"
local IDS_FROM = 5 -- first argument of the members
local now = clock(ARGV[1])
local keep = whole_number(ARGV[3], 0, SPAN_MOST_MS, 'keep_ms')
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, audited, chunk, holds = unpack(redis.call('HMGET', slot, 'created', 'audited',
  'chunk', 'holds'))
if not created then
  fail('GONE', slot)
end
if #ARGV < IDS_FROM or #ARGV >= IDS_FROM + MOST then
  fail('ARG', 'count')
end
local died_by = ARGV[4] == '' and math.huge or whole_number(ARGV[4], 0, NUMBER_MOST, 'died_by')
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', trash)
redis.call('HLEN', deaths)
redis.call('HLEN', records)
redis.call('HLEN', failures)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
local outcomes, ids, add, died_at, seen = {}, {}, {}, {}, {}
for i = IDS_FROM, #ARGV do
  local id = ARGV[i]
  local died = not seen[id] and redis.call('ZSCORE', dead, id)
  local outcome = '0'
  if died and tonumber(died) <= died_by then
    outcome = holds and hold_of(id, died) and 'm' or '1'
    if outcome == '1' then
      seen[id] = true
      ids[#ids + 1] = id
      add[#add + 1], add[#add + 2] = now + keep, id
      died_at[#died_at + 1], died_at[#died_at + 2] = id, died
    end
  end
  outcomes[#outcomes + 1] = outcome
end
if #ids > 0 then
  allow_oom(dead)
  redis.call('ZREM', dead, unpack(ids))
  note_outcomes(ids, now, 'p', { members_only = true })
  if keep == 0 then
    drop_for_good(audited, tonumber(chunk), ids, now)
    redis.call('HINCRBY', slot, 'purged', #ids)
  else
    redis.call('ZADD', trash, unpack(add))
    redis.call('HSET', deaths, unpack(died_at))
    count_trash()
  end
  remember(ARGV[2], now, table.concat(outcomes))
end
return table.concat(outcomes)
