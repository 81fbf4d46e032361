--[[
sink_begin: ask whether a batch of a query is to be published, and note its stages once and for all.
`done` of the sink is the last batch that is published; `batch` and `stages` are the batch that is
being published.

ARGV[1]   batch                its number, growing from 0
ARGV[2]   stages               text that names the stages of the batch; '' only asks
Returns   {'done'} this batch, or a later one, is published {'open', batch, stages} this batch is
          being published, or an earlier one that must be ended first {'new'} it has not begun; only
          where `stages` is ''
Cost      O(1), and the size of the text
Atomic    The first caller that names stages decides; every later caller gets that answer until
          sink_end. A call that names stages always writes, so that a wait for copies covers the
          batch.
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
