--[[
audit_open: read a page of the open numbers of audited messages. lib/audit describes the members of
the key `audit`.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   after                the last member of the previous page, or ''
ARGV[3]   limit                1 to 1000
ARGV[4]   every_ms             0: always read; else read only if the last call with an every_ms was
          at least this long ago
Returns   {epoch ms, numbers reported as sent, numbers settled, numbers accounted for otherwise,
          member, ...}. Fewer members than the limit are the last page. {0} if every_ms is not over.
Cost      O(log L + limit), L = ranges
Atomic    Reads only, but a call with an every_ms notes its time.
]]
--- @keys slot audit
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/writes"
local now = clock(ARGV[1])
local limit = whole_number(ARGV[3], 1, MOST, 'limit')
local every = whole_number(ARGV[4], 0, NUMBER_MOST, 'every_ms')
local created, numbered, seen, accounted, audit_at =
  unpack(redis.call('HMGET', slot, 'created', 'numbered', 'seen', 'accounted', 'audit_at'))
if not created then
  fail('GONE', slot)
end
local after = ARGV[2] == '' and '-' or '(' .. ARGV[2]
local page = redis.call('ZRANGEBYLEX', audit, after, '+', 'LIMIT', 0, limit)
if every > 0 then
  if audit_at and tonumber(audit_at) > now - every then
    return { 0 }
  end
  allow_oom(audit)
  redis.call('HSET', slot, 'audit_at', now)
end
return { now, tonumber(numbered or 0), tonumber(seen or 0), tonumber(accounted or 0), unpack(page) }
