--[[
schedule_send: send the message of a schedule for one time, and move the schedule to its next time;
or only move it. `failures`, `merge`, `audit`, `bodies`, `results` and `keeping` are for messages
that drop_lowest drops, `prepare` is for a hand-over to a sleeping consumer.

ARGV[1]   now_us         ''    or a test's time
ARGV[2]   channel              where sleeping consumers of the topic listen
ARGV[3]   index                the slot's index, sent to the consumers that are woken
ARGV[4]   created              the topic's stamp as the caller opened it. Another stamp is an error.
ARGV[5]   name
ARGV[6]   revision             of the schedule, as the caller read it
ARGV[7]   expected             its next time, as the caller read it
ARGV[8]   next_ms        ''    if it has no more times; else its next time from now on, epoch ms
ARGV[9]   due_ms         ''    the same with its jitter
ARGV[10]  time_ms        ''    for times that are skipped, without a message; else the time that the
          message is for
ARGV[11]  member         ''    without a message; else 13 bytes: the id without slot and checksum
ARGV[12]  head           ''    the first 4 bytes of the record
ARGV[13]  rest           ''    the record from byte 9 on
Returns   1 sent and moved, or only moved; 0 nothing: the schedule has moved already, has changed,
          is paused, deleted or not due; -1 nothing: the slot has no more room (max_length); -2
          nothing: sends are paused
Cost      O(log L + log S), L = messages waiting in the slot, S = schedules of the topic
Atomic    Sending and moving are one step, which needs the revision and the time that the caller
          read. So of any number of callers, one caller sends the message of a time. If it dies
          before, another caller sends the message. Types are checked first. Redis refuses the first
          write at maxmemory. A second run finds the schedule moved. A schedule that is not due is
          moved without a message if its last move was more than a minute in the future: the clock
          was set back since.
]]
--- @keys slot store records settled0 settled1 failures merge audit bodies schedules schedule_times prepare results keeping
--- @include "lib/check"
--- @include "lib/clock"
--- @include "lib/schedules"
--- @include "lib/records/record_bytes"
--- @include "lib/slot_fields"
local now = clock(ARGV[1])
local name = ARGV[5]
local fields = read_store_fields('')
if fields[CREATED] ~= ARGV[4] then
  fail(fields[CREATED] and 'ANEW' or 'GONE', slot)
end
if #ARGV ~= 13 then
  fail('ARG', 'name')
end
if ARGV[8] ~= '' or ARGV[9] ~= '' then
  check_times(ARGV[8], ARGV[9])
end
if ARGV[10] ~= '' then
  whole_number(ARGV[10], 0, NUMBER_MOST, 'time_ms')
end
local schedule, due = read_schedule(name), redis.call('ZSCORE', schedule_times, name)
if not due or schedule[3] ~= ARGV[6] or schedule[4] ~= ARGV[7] then
  return 0
end
local moves_back = ARGV[10] == '' and due ~= 'inf' and is_ahead(schedule[7], now)
if tonumber(due) > now and not moves_back then
  return 0
end
local serves_sleepers = false
if ARGV[10] ~= '' then
  if fields[PAUSED_SEND] then
    return -2
  end
  --- @include "lib/send/store_messages"
  local batch = { given = { ARGV[11], ARGV[12], ARGV[13] }, at = 0, count = 1, large = false }
  local reply
  reply, serves_sleepers = store_messages(batch, fields, now)
  local letters = reply[2]
  if letters == FULL then
    return -1
  end
  redis.call('HSET', schedules, name .. ':last', ARGV[10])
  if letters == '' then
    redis.call('HINCRBY', schedules, name .. ':sent', 1)
  end
end
note_move(name, ARGV[8], now)
redis.call('ZADD', schedule_times, ARGV[9] == '' and '+inf' or ARGV[9], name)
if serves_sleepers then
  --- @include "lib/wake/hand_over"
  serve_sleepers(ARGV[2], ARGV[3], now)
end
return 1
