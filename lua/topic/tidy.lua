--[[
tidy: drop everything in a slot that has passed its time.

It drops dead letters past the topic's retention, letters in the trash, settled ids past the dedup
window, and old answers in replay sessions. It drops full buckets of limits for each key, results
past their keeping, and old notes of messages that went to another topic. Groups that wait for a
message which somebody deleted by hand continue. Acked messages past the limits of the history are
removed, or all if the topic has no history any more. At maxmemory, four parts are removed.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   limit                1 to 1000: most dead letters, and most buckets, results and notes
Returns   {number of dead letters dropped, also from the trash; 1 if there is more to drop, else 0}
Cost      O(n log L), n = limit, L = messages of the slot; and up to 16 parts of the history. Each
          call reads the entries of about 100 groups, and the next call continues behind them. Redis
          frees the ids in another thread.
Atomic    Types are checked before the first write, and no write needs memory. A second run
          continues.
]]
--- @keys slot records dead failures settled0 settled1 audit bodies trash deaths rates arrivals store prepare results keeping acked ackedparts
--- @include "lib/results/results"
--- @include "lib/dead_letters/arrivals"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/dead_letters/dead_letters"
--- @include "lib/take/key_limits"
--- @include "lib/replay"
--- @include "lib/send/dedup_window"
--- @include "lib/dead_letters/trash"
--- @include "lib/writes"
local now = clock(ARGV[1])
local limit = whole_number(ARGV[2], 1, MOST, 'limit')
local created, dead_retention_ms, dedup_ms, settled_turn, audited, chunk, grouped, history,
  acked_state = unpack(redis.call('HMGET', slot, 'created', 'dead_retention_ms', 'dedup_ms',
    'settled_turn', 'audited', 'chunk', 'groups', 'history', 'acked'))
if not created then
  fail('GONE', slot)
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('HLEN', records)
redis.call('ZCARD', dead)
redis.call('HLEN', failures)
redis.call('SCARD', settled0)
redis.call('SCARD', settled1)
redis.call('ZCARD', audit)
redis.call('HLEN', bodies)
redis.call('ZCARD', trash)
redis.call('HLEN', deaths)
redis.call('ZCARD', rates)
redis.call('ZCARD', arrivals)
redis.call('ZCARD', store)
redis.call('ZCARD', prepare)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
redis.call('XLEN', acked)
-- A key of a wrong type stops the script here.
redis.call('LLEN', ackedparts)
local window, last_turn = tonumber(dedup_ms), tonumber(settled_turn)
local more = false
if acked_state then
  --- @include "lib/history/tidy_history"
  more = tidy_history(history, acked_state, now)
end
allow_oom(dead) -- the first write of sweep_sessions may add a field
if last_turn then
  local forgotten = forgotten_sets(window, last_turn, now)
  if forgotten then
    redis.call('UNLINK', unpack(forgotten))
  end
end
sweep_sessions(now, 100)
more = forget_full_buckets(now, limit) or more
more = forget_arrivals(now, limit) or more
more = forget_results(now, limit) == limit or more
if grouped then
  --- @include "lib/groups/lost_members"
  free_groups(grouped)
end
local dropped = empty_trash(audited, tonumber(chunk), now, limit)
local retention = tonumber(dead_retention_ms)
if retention > 0 and dropped < limit then
  dropped = dropped
    + drop_old_dead(audited, now - retention, now, limit - dropped)
end
return { dropped, (more or dropped == limit) and 1 or 0 }
