--[[
Results: how messages have ended, for senders that ask for it. The Python twin is
rmq/kernel/results/entry.py.

A message keeps its result if its record has a mark (lib/results/keep_mark). The field `outcomes` of
a slot says that the slot has stored such a message. In a slot without the field, no script reads
records for this. Every script that ends messages calls note_outcomes (lib/results/note_outcomes).
For messages that die, add_dead (lib/dead_letters/dead_letters) calls it.

The hash `results` has an entry for each message; `keeping` has the end of its keeping, epoch ms.

  byte 1      s succeeded, h handed over (settled before it was handled), d dead, c cancelled,
              e expired and dropped, p purged, o dropped to make room; r running
  bytes 2-7   time of the end, epoch ms; of r: of the report
  rest        s, h: what the consumer has given: nothing, or msgpack of [worker, attempts, start in
              epoch ms, kind of the value] and then the bytes of the value
              r: msgpack of [fraction, text, attempt, worker]. It has no end of keeping. The end of
              its message replaces it
              others: the failure entry of the message (lib/settle/attempts), or nothing

Each call publishes the members of its entries on the channel of the slot's results.
]]
--- @needs slot results keeping

-- Tell the waiting senders of a slot about messages. `verb`: done or progress. A refusal does not
-- stop the script, as in lib/wake/wake.
--- @inline
local function publish_results(verb, ids)
  local stem, index = string.match(slot, '^(.*)_(%d+)}:slot$')
  redis.pcall('PUBLISH', stem .. '}:wake:results:' .. index, verb .. ' ' .. table.concat(ids))
end

-- Remove up to `limit` entries whose keeping is over. Return how many were removed. Needs no
-- memory.
local function forget_results(now, limit)
  local ids = redis.call('ZRANGEBYSCORE', keeping, '-inf', now, 'LIMIT', 0, limit)
  if #ids > 0 then
    redis.call('ZREM', keeping, unpack(ids))
    redis.call('HDEL', results, unpack(ids))
  end
  return #ids
end

-- Remove the entries of messages that live again, or live in another topic.
--- @inline
local function drop_results(ids)
  if redis.call('HEXISTS', slot, 'outcomes') == 1 then
    redis.call('ZREM', keeping, unpack(ids))
    redis.call('HDEL', results, unpack(ids))
  end
end
