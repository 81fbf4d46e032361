--[[
pending_settle: remove pending entries that are stored in their target, and return the next entries.
This is the last step, after ack_then and pending_send. A caller that has sent nothing yet calls it
to begin.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   target               the slot that gets the entries: `<topic>:<index>`
ARGV[3]   upto                 number up to which entries are stored there; 0: none
ARGV[4]   claim          ''    or the claim of the caller, from an earlier reply
ARGV[5]   limit                most entries to return, 0 to 1000; 0 ends the claim
ARGV[6]   wait_ms        ''    or for how long no process sends to this target
ARGV[7..] nothing; or, if the target refuses the first entry for good: its number, the member, the
          head and the rest of the record of a dead letter in its place, and the failure's text
Returns   {claim, entries as in `pending` without the name of the target}. No claim and no entries:
          none are left, or another process sends them
Cost      O(log P) for each entry, P = pending entries of the slot. Entries of 4 MiB at most are
          read, but at least one
Atomic    Only entries with numbers up to the given number are removed, so a late call does no harm.
          A refused entry is removed, and its dead letter stored, only under the claim of the caller
          and only while it is the first entry. A claim lasts 5 s, and each reply with entries
          renews it. Works while Redis is at maxmemory. A second run finds nothing to remove.
]]
--- @keys slot records dead failures audit bodies pending targets results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/follow_ups/pending"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/writes"
local now = clock(ARGV[1])
local target, claim = ARGV[2], ARGV[4]
check_place(target)
local upto = whole_number(ARGV[3], 0, NUMBER_MOST, 'upto')
local limit = whole_number(ARGV[5], 0, MOST, 'limit')
local wait_ms = ARGV[6] ~= '' and whole_number(ARGV[6], 0, WAIT_MOST_MS, 'wait_ms')
local refused = #ARGV > 6 and whole_number(ARGV[7], 1, NUMBER_MOST, 'refused')
if #ARGV ~= 6 and #ARGV ~= 11 or refused and (#ARGV[8] ~= MEMBER or #ARGV[9] ~= HEAD) then
  fail('ARG', 'refused')
end
local created, accepted, audited, dead_retention_ms =
  unpack(redis.call('HMGET', slot, 'created', 'accepted', 'audited', 'dead_retention_ms'))
if not created then
  fail('GONE', slot)
end
if refused then
  redis.call('HLEN', records)
  redis.call('ZCARD', dead)
  redis.call('HLEN', failures)
  redis.call('ZCARD', audit)
  redis.call('HLEN', bodies)
  redis.call('HLEN', results)
  redis.call('ZCARD', keeping)
end
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', pending)
local score = redis.call('ZSCORE', targets, target)
local is_mine = score and score == claim

-- Put a dead letter in the place of the first entry, if the entry has this number.
--- @inline
local function bury(number)
  --- @include "lib/results/keep_mark"
  --- @include "lib/dead_letters/dead_letters"
  --- @include "lib/records/note_offloaded"
  --- @include "lib/results/note_marks"
  local entry = first_entries(target, 1)[1]
  if not entry or string.sub(entry, #target + 2, #target + 1 + NUMBER_DIGITS)
      ~= number_text(number) then
    return
  end
  local id = ARGV[8]
  if redis.call('HEXISTS', records, id) == 1 then
    fail('ARG', 'member')
  end
  redis.call('ZREM', pending, entry)
  local last = tonumber(accepted or 0) + 1
  redis.call('HSET', slot, 'accepted', last)
  local record = ARGV[9] .. struct.pack('>I4', last % ACCEPTED_CYCLE) .. ARGV[10]
  redis.call('HSET', records, id, record)
  note_offloaded({ id, record })
  note_marks({ id, record })
  local died = { ids = { id }, delivery_counts = { 1 }, reason = 'r', details = ARGV[11] }
  add_dead(died, audited, tonumber(dead_retention_ms), now)
end

allow_oom(pending)
if upto > 0 then
  redis.call('ZREMRANGEBYLEX', pending, '[' .. target .. ':',
    '(' .. target .. ':' .. number_text(upto) .. ';')
end
if refused and is_mine then
  bury(refused)
end
local entries = first_entries(target, math.max(1, limit))
if #entries == 0 then
  redis.call('ZREM', targets, target)
  return { '' }
end
if not is_mine and (wait_ms or score and tonumber(score) > now) then
  return { '' }
end
local until_ms = now + (wait_ms or limit > 0 and CLAIM_MS or 0)
redis.call('ZADD', targets, string.format('%.0f', until_ms), target)
if wait_ms or limit == 0 then
  return { '' }
end
local reply = { redis.call('ZSCORE', targets, target) }
for i = 1, #entries do
  reply[i + 1] = string.sub(entries[i], #target + 2)
end
return reply
