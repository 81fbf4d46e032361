--[[
prepare: lease messages. Moves what goes next from the StoreQueue to the PrepareQueue and hands it over.

KEYS[1]   slot           hash  settings and counters of the slot
KEYS[2]   StoreQueue     zset  message id -> score
KEYS[3]   PrepareQueue   zset  message id -> deadline s * 1000 + retries remaining + (delivery mod 2048) / 2048
KEYS[4]   records        hash  message id -> record
KEYS[5]   DeadQueue      zset  message id -> time of death, epoch ms
KEYS[6]   failures       hash  message id -> what it failed of
KEYS[7]   merge index    hash  merge key -> id and when it opened
KEYS[8]   replay         str   the last answer given to this lane
KEYS[9]   audit          zset  numbers of messages that are not accounted for
ARGV[1]   now_us         ''    or a test's time
ARGV[2]   number               of this call in its lane
ARGV[3]   limit                1 to 1000
ARGV[4]   lease_ms             1000 to 43 200 000; the deadline is rounded up to whole seconds
ARGV[5]   waits                1: the caller sleeps if this finds nothing, and wants to be woken
ARGV[6]   ordered              1: in order. Nothing is handed over while anything of the slot is in flight, and
                               one message alone where a living one has failed; 0: plainly, see below
ARGV[7]   created              the topic's stamp, as the caller opened it: another one is an error
ARGV[8]   again                1 where an earlier copy of this call had no reply; else left out
Returns   {us until the slot next has work (0 now, -1 never), 1 if leases have run out and want a rollback, 2 more
          if those of queries have,
          deadline s, number of the first delivery, acceptance number of the newest message,
          retries remaining of each as one byte ('' when none has failed), ids, records}
          An id of '' stands where a replayed delivery is no longer the caller's.
Cost      O(k log L), k = limit, plus at most 1000 due messages that join their priority; at most 16 MiB
Atomic    Everything taken is read and checked before it moves; the first write frees memory, so a full
          Redis still drains. Run twice with one number, it hands over the same deliveries. A repeated call
          that found nothing is remembered too, so that the earlier copy takes nothing if it comes late. Expired
          messages are buried or dropped here, not handed over.
          A take in order sets the slot's `ordered`. Where that is set, a plain take too waits for what is in
          flight and for the hold; then it takes, and clears it.
]]
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/families"
--- @include "lib/replay"
local slot, store, prepare, records, dead = KEYS[1], KEYS[2], KEYS[3], KEYS[4], KEYS[5]
local failures, merge, lane, audit = KEYS[6], KEYS[7], KEYS[8], KEYS[9]
local now, now_us = clock(ARGV[1])
local limit, waits, ordered = whole(ARGV[3], 1, 1000, 'limit'), ARGV[5], ARGV[6] == '1'
local lease = whole(ARGV[4], 1000, 43200000, 'lease_ms')

local before = replayed(lane, ARGV[2])
if before then
  local deadline, first, kept = string.match(before, '^(%d+):(%d+):(.*)$')
  deadline, first = tonumber(deadline), tonumber(first)
  local reply, lefts = { 0, 0, deadline, first, tonumber(redis.call('HGET', slot, 'accepted') or 0), '', {}, {} }, {}
  for i = 1, #kept / 16 do
    local id = string.sub(kept, i * 16 - 15, i * 16)
    local score = tonumber(redis.call('ZSCORE', prepare, id) or -1)
    local record = score >= 0 and redis.call('HGET', records, id)
    local left = math.floor(score % 1000)
    if not record or score ~= deadline * 1000 + left + (first + i - 1) % 2048 / 2048 then
      id, record, left = '', '', 0
    end
    lefts[i] = string.char(left)
    reply[7][i], reply[8][i] = id, record
  end
  reply[6] = table.concat(lefts)
  return reply
end

local created = ARGV[7]
local again, number = ARGV[8] == '1', ARGV[2]
--- @include "lib/take"
local deadline, first, leases = math.ceil((now + lease) / 1000), reply[4], {}
local base = deadline * 1000 + (lefts and 0 or max_retries)
for i = 1, n do
  leases[2 * i - 1] = base + (lefts and lefts[i] or 0) + (first + i - 1) % 2048 / 2048
  leases[2 * i] = ids[i]
end
if n < 8 then
  redis.call('ZADD', prepare, unpack(leases))
else
  --- @include "lib/add_wide"
  add_wide(prepare, leases)
end
remember(lane, ARGV[2], string.format('%d:%.0f:', deadline, first) .. table.concat(ids, '', 1, n))
reply[3] = deadline
if ordered then
  reply[1] = deadline * 1000000 - now_us
elseif drained then
  --- @include "lib/soon"
  reply[1] = soon(store, prepare, now_us)
end
return reply
