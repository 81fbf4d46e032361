--[[
query_read: hand out messages of a query. Stores the newest number handed out and the bytes read,
and changes nothing else. The script only checks that the slot exists.

ARGV[1]   after                messages after this number
ARGV[2]   upto                 up to this number
ARGV[3]   limit                1 to 4000; with records 1 to 1000
ARGV[4]   records              1: also return the records; 0: the caller reads them with HMGET
ARGV[5]   bytes                that the caller has read since its last call; query_settle returns
          their sum
Returns   {the number before the first member, the members joined (13 bytes each), their receipts as
          text ('' for a message that has left the PrepareQueue), their records}, in the order of
          their numbers. The reply has fewer messages than the limit at the end of the range, or
          after 4 MiB of records. If nothing in the slot has ever failed, there are no receipts: all
          messages have every retry. A message that query_fail took out of the batch has its former
          receipt, and its record if that still exists. So a replayed batch is the same.
Cost      O(n / 500 + k), n = messages in flight for the query, k = limit
Atomic    One moment of one slot. The script writes only `read` and `bytes`, which needs no memory.
          A second run returns the same, and counts the bytes twice.
]]
--- @keys slot prepare records failures query querylog querymarks
--- @include "lib/check"
--- @include "lib/writes"
--- @include "lib/query"
local after = whole_number(ARGV[1], 0, NUMBER_MOST, 'after')
local upto = whole_number(ARGV[2], 0, NUMBER_MOST, 'upto')
local with_records = whole_number(ARGV[4], 0, 1, 'records') == 1
local limit = whole_number(ARGV[3], 1, with_records and MOST or QUERY_MOST, 'limit')
local bytes_read = whole_number(ARGV[5], 0, NUMBER_MOST, 'bytes')
if redis.call('HEXISTS', slot, 'created') == 0 then
  fail('GONE', slot)
end
local state = read_query()
if bytes_read > 0 and state[TAIL] then
  allow_oom(prepare)
  redis.call('HINCRBY', query, 'bytes', ARGV[5])
end
local before_log, tail, expired_to = log_range(state, 0)
local from, to, ids = math.max(after, expired_to), math.min(upto, tail), {}
if from < to then
  local begin = from - before_log -- position in the log, from 0
  ids = redis.call('LRANGE', querylog, begin, math.min(to - before_log, begin + limit) - 1)
end
local any_marked = redis.call('ZCARD', querymarks) > 0
local any_failed = redis.call('HLEN', failures) > 0 or any_marked
if #ids == 0 then
  return { from, '', {}, {} }
end
local found_records, receipts = {}, {}
if with_records then
  found_records = redis.call('HMGET', records, unpack(ids))
  local bytes = 0
  for i = 1, #ids do
    bytes = bytes + (found_records[i] and #found_records[i] or 0)
    found_records[i] = found_records[i] or ''
    if bytes >= READ_BYTES and i < #ids then
      ids, found_records = { unpack(ids, 1, i) }, { unpack(found_records, 1, i) }
      break
    end
  end
end
if any_failed then
  receipts = redis.call('ZMSCORE', prepare, unpack(ids))
  local marked = any_marked and read_marks(from + 1, from + #ids) or {}
  for i = 1, #ids do
    receipts[i] = marked[from + i] and string.match(marked[from + i], '%a(.*)') or receipts[i] or ''
  end
end
if from + #ids > tonumber(state[READ] or 0) then
  allow_oom(prepare)
  redis.call('HSET', query, 'read', from + #ids)
end
return { from, table.concat(ids), receipts, found_records }
