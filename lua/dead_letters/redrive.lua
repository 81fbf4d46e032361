--[[
redrive: send dead letters back to the StoreQueue, with all their retries. `prepare` is for a
hand-over to a sleeping consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   call                 the session and the number of this call in it: `<session> <number>`
ARGV[3]   channel              where sleeping consumers of the topic listen
ARGV[4]   index                the slot's index, sent to the consumers that are woken
ARGV[5]   died_by        ''    or epoch ms: only letters that died until then
ARGV[6]   drop_steps     ''    or 1: delete the steps of the messages
ARGV[7]   edited         ''    or the new record of a single letter, without the acceptance number
ARGV[8..] members, at most 1000, 13 bytes each.
Returns   a character for each member: 1 sent back; 0 not in the DeadQueue, or died later. x and m
          are left in the DeadQueue: x has no readable record; m is on its way to another topic
          (redrive_hold).
Cost      O(n log L), at most 4 MiB of records. Members beyond that are not read, and the answer is
          shorter.
Atomic    Only dead letters move, each to the end of its priority. A letter without a priority is
          due now. An expiry that has passed is removed. The failure entry stays, and notes the
          redrive. The steps stay, or are deleted. The result is removed, because the message lives
          again. An edited letter gets its new record in the same step; its old body is removed. A
          call that is sent twice gets the first answer again.
]]
--- @keys slot store records dead failures prepare results keeping bodies
--- @include "lib/settle/attempts"
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/scores/score"
--- @include "lib/scores/timed_score"
--- @include "lib/records/record_bytes"
--- @include "lib/records/envelope"
--- @include "lib/wake/wake"
--- @include "lib/replay"
--- @include "lib/results/results"
local IDS_FROM = 8 -- first argument of the members
local now = clock(ARGV[1])
local earlier_answer = replayed(ARGV[2])
if earlier_answer then
  return earlier_answer
end
local created, order, waiting, holds, max_retries, grouped, default_priority,
  steps =
  unpack(redis.call('HMGET', slot, 'created', 'order', 'waiting', 'holds', 'max_retries', 'groups',
    'timed_priority', 'steps'))
if not created then
  fail('GONE', slot)
end
local n = #ARGV - IDS_FROM + 1
if n < 1 or n > MOST or ARGV[7] ~= '' and n > 1 then
  fail('ARG', 'count')
end
local find_hold -- hold_of, if the slot has held letters
if holds then
  --- @include "lib/dead_letters/holds"
  find_hold = hold_of
end
local died_by = ARGV[5] == '' and math.huge or whole_number(ARGV[5], 0, NUMBER_MOST, 'died_by')
-- A key of a wrong type stops the script here, before it writes anything.
redis.call('ZCARD', store)
redis.call('HLEN', failures)
redis.call('HLEN', results)
redis.call('ZCARD', keeping)
redis.call('HLEN', bodies)
local add_to_group, write_entries
if grouped then
  --- @include "lib/groups/enter_groups"
  add_to_group, write_entries = returning_groups(grouped, true)
end
local outcomes, ids, add, without_expiry, bytes, seen = {}, {}, {}, {}, 0, {}
order = tonumber(order or 0)

-- Return the outcome for a member, and its record if it can be sent back.
local function look_up(id)
  local died = not seen[id] and redis.call('ZSCORE', dead, id)
  if not died or tonumber(died) > died_by then
    return '0'
  end
  if find_hold and find_hold(id, died) then
    return 'm'
  end
  local record = redis.call('HGET', records, id)
  if not record or #record < FIXED then
    return 'x'
  end
  if ARGV[7] ~= '' then
    record = string.sub(ARGV[7], 1, HEAD) .. string.sub(record, HEAD + 1, FIXED)
      .. string.sub(ARGV[7], HEAD + 1)
  end
  return '1', record
end

-- Let a dead letter into its group, or give it a score.
local function add_letter(id, record)
  local priority, score = priority_of(record), nil
  if add_to_group then
    add_to_group(record, id, priority > 0 and priority or tonumber(default_priority))
    return
  end
  if priority > 0 then
    order = order + 1
    score = ordered_score(priority, order)
  else
    score = next_timed_score(now, 0)
  end
  add[#add + 1], add[#add + 2] = score, id
end

-- Remove an expiry that has passed from a record.
local function remove_expiry(id, record)
  local due, expiry = envelope(record)
  if not expiry or expiry > now then
    return
  end
  local at = FIXED + 1 + (due and TIME or 0) -- the expiry is behind the due time
  local first = string.char(string.byte(record, 1) - EXPIRES)
  without_expiry[#without_expiry + 1] = id
  without_expiry[#without_expiry + 1] = first .. string.sub(record, 2, at - 1)
    .. string.sub(record, at + TIME)
end

local edited_record
for i = IDS_FROM, #ARGV do
  local id = ARGV[i]
  local outcome, record = look_up(id)
  if record then
    edited_record = ARGV[7] ~= '' and record
    bytes = bytes + #record
    if bytes > READ_BYTES and #ids > 0 then
      break
    end
    seen[id] = true
    ids[#ids + 1] = id
    add_letter(id, record)
    remove_expiry(id, record)
  end
  outcomes[#outcomes + 1] = outcome
end
local answer = table.concat(outcomes)
if #ids == 0 then
  return answer
end
if edited_record then
  --- @include "lib/records/drop_records"
  -- This reads the old record, so it comes before the write of the new record. A page of 1 is
  -- enough, because an edited letter is the only letter of a call.
  local names, references = find_bodies(ids, 1)
  redis.call('HSET', records, ids[1], edited_record)
  if #names > 0 then
    drop_bodies(names, true)
  end
  if #references > 0 then
    leave_tombstones(references, redis.call('HGET', slot, 'released'))
  end
end
if write_entries then
  write_entries()
else
  redis.call('ZADD', store, unpack(add))
end
if #without_expiry > 0 then
  redis.call('HSET', records, unpack(without_expiry))
end
redis.call('ZREM', dead, unpack(ids))
drop_results(ids)
if steps and ARGV[6] == '1' then
  --- @include "lib/records/steps"
  drop_parts(ids, 's', 'steps')
end
local retries, deliveries_left = tonumber(max_retries), {}
for i = 1, #ids do
  deliveries_left[i] = retries + 1
end
note_failures(ids, deliveries_left, retries, 'd', false, now)
redis.call('HSET', slot, 'order', order)
redis.call('HINCRBY', slot, 'redriven', #ids)
if is_awaited(waiting, now) then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[3], ARGV[4], now)
end
remember(ARGV[2], now, answer)
return answer
