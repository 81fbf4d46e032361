--[[
sink_begin: return whether a batch of a query has to be published, and store its stages once.
`done` of the sink is the last batch that is published. `batch` and `stages` are the batch that is
being published.

ARGV[1]   batch                its number, growing from 0
ARGV[2]   stages               text that names the stages of the batch; '' only reads
Returns   {'done'} this batch is published, or a later batch is; {'open', batch, stages} this batch
          is being published, or an earlier batch that must be ended first; {'new'} the batch has
          not begun, only if `stages` is ''
Cost      O(1), and the size of the text
Atomic    The first call that names stages decides. Until sink_end each later call returns them. A
          call that names stages always writes, so a wait for copies covers the batch.
]]
--- @keys sink
--- @include "lib/check"
--- @include "lib/writes"
local stages = ARGV[2]
local batch = whole_number(ARGV[1], 0, NUMBER_MOST, 'batch')
if not stages then
  fail('ARG', 'stages')
end
local done, open_batch, open_stages = unpack(redis.call('HMGET', sink, 'done', 'batch', 'stages'))
if open_batch then
  if stages ~= '' then
    write_again(sink, 'batch', open_batch)
  end
  return { 'open', open_batch, open_stages }
end
if done and batch <= tonumber(done) then
  if stages ~= '' then
    write_again(sink, 'done', done)
  end
  return { 'done' }
end
if stages == '' then
  return { 'new' }
end
redis.call('HSET', sink, 'batch', ARGV[1], 'stages', stages)
return { 'open', ARGV[1], stages }
