--[[
sink_end: store that a batch of a query is published. `done` of the sink is the last batch that is
published. `batch` and `stages` are the batch that is being published.

ARGV[1]   batch                its number
Returns   1 stored, 0 it is not being published
Cost      O(1)
Atomic    The first write needs no memory. A second run returns 0 and writes `done` again, so a wait
          for copies covers it.
]]
--- @keys sink
--- @include "lib/check"
--- @include "lib/writes"
whole_number(ARGV[1], 0, NUMBER_MOST, 'batch')
local open_batch, done = unpack(redis.call('HMGET', sink, 'batch', 'done'))
if open_batch ~= ARGV[1] then
  if done == ARGV[1] then
    write_again(sink, 'done', done)
  end
  return 0
end
redis.call('HDEL', sink, 'batch', 'stages')
redis.call('HSET', sink, 'done', ARGV[1])
return 1
