--[[
Short forms of ack_then: settle one delivery with one follow-up, or one delivery without follow-ups
in a slot that keeps results, in a session that the slot knows. The delivery is of the kind of the
short form of ack, and the slot has no groups. The follow-up is a plain message, that is one without
a time. If a guard fails, ack_then.lua continues with the long form, which does the same for all
deliveries and follow-ups.

Reads: RESULT_MOST audited blocked call call_number cancelling created grouped history large
  last_call last_number offloaded outcomes session settled
]]
--- @include "lib/split_call"
--- @include "lib/member"
--- @include "lib/leases/receipt"
--- @include "lib/read_time"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
--- @include "lib/session"
--- @include "lib/settle/count_failed"
local ONE = '\0\1' -- position of the only delivery
local BEHIND = 10 -- where the number of results is in ARGV, for a single delivery
repeat
  if not last_call or not created or #ARGV ~= BEHIND + 6 or ARGV[BEHIND] ~= '0' then
    break -- a new session, several deliveries, or several follow-ups
  end
  if blocked or audited then
    break -- other consumers may wait for this ack, or the numbers of messages are counted
  end
  if large or offloaded or cancelling or grouped or outcomes or history then
    break -- the message may have more than its record
  end
  local receipt, _, id = unpack(ARGV, RUNS_FROM + 1)
  local place, positions, target, count, message = unpack(ARGV, BEHIND + 2)
  if #id ~= MEMBER or string.byte(call, 1) ~= SESSION_SIGN then
    break -- the long form refuses the arguments
  end
  if string.byte(id, 1) >= KEPT or target == place then
    break -- the sender keeps the id, or the follow-up is for this slot
  end
  local is_next = is_next_call(last_call, call_number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  if positions ~= ONE or count ~= '1' or #message < MEMBER + HEAD then
    break -- several follow-ups, or the long form refuses the arguments
  end
  local first_byte, a, b, c = string.byte(message, MEMBER + 1, MEMBER + HEAD)
  local priority = a * 65536 + b * 256 + c
  if first_byte % HEADERS > 0 or priority < PRIORITY_MIN or priority >= PRIORITY_END then
    break -- the follow-up has a time, an expiry, or an invalid head
  end
  local is_place = string.find(target, '^[%w._-]+:%d+$') and #target <= PLACE_MOST
  local score = redis.call('ZSCORE', prepare, id)
  local is_valid = score and (score == receipt or tonumber(score) == tonumber(receipt))
  local failed = count_failed()
  if not is_place or not is_valid or failed > 0 then
    break -- the lease has expired, or the message may have a failure entry
  end

  local now, now_us, seconds = read_time(ARGV[1])
  local claimed_until = redis.call('ZSCORE', targets, target)
  local is_claimed = claimed_until and tonumber(claimed_until) > now
  redis.call('ZCARD', pending) -- a wrong type is an error before the first write
  local number = math.max(tonumber(last_number or 0) + 1, now_us)
  local claim = string.format('%.0f', now + CLAIM_MS)
  local text = string.format('%016.0f', number)
  local answer = '1 ' .. text .. ' ' .. claim .. ' ' .. target
    .. (is_claimed and '=w' or claimed_until and '=o' or '=n')
  local field_value = session_answer(call_number, seconds, answer)
  redis.call('HDEL', records, id)
  redis.call('ZREM', prepare, id)
  redis.call('ZADD', pending, 0, target .. ':' .. text .. ':' .. message)
  if not is_claimed then
    redis.call('ZADD', targets, claim, target)
  end
  redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, 'follow_ups',
    string.format('%.0f', number), session, field_value)
  return answer
until true
repeat
  if not last_call or not created or not outcomes or #ARGV ~= BEHIND + 2
      or ARGV[BEHIND] ~= '1' then
    break -- a new session, several deliveries, or follow-ups
  end
  if blocked or audited then
    break -- other consumers may wait for this ack, or the numbers of messages are counted
  end
  if large or offloaded or cancelling or grouped or history then
    break -- the message may have more than its record and its result
  end
  local receipt, _, id, _, keep_text, given = unpack(ARGV, RUNS_FROM + 1)
  if #id ~= MEMBER or string.byte(call, 1) ~= SESSION_SIGN then
    break -- the long form refuses the arguments
  end
  if string.byte(id, 1) >= KEPT then
    break -- the sender keeps the id
  end
  local is_next = is_next_call(last_call, call_number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  local letter = string.sub(given, 1, 1)
  local keep = string.find(keep_text, '^%d+$') and tonumber(keep_text) or 0
  if keep < 1 or keep > NUMBER_MOST or given == '' then
    break -- the record says whether the message keeps its result
  end
  if letter ~= 's' and letter ~= 'h' or #given > RESULT_MOST then
    break -- the long form refuses the result
  end
  local score = redis.call('ZSCORE', prepare, id)
  local is_valid = score and (score == receipt or tonumber(score) == tonumber(receipt))
  local failed = count_failed()
  if not is_valid or failed > 0 then
    break -- the lease has expired, or the message may have a failure entry
  end
  --- @include "lib/records/record_bytes"
  --- @include "lib/results/results"

  local now, _, seconds = read_time(ARGV[1])
  redis.call('HLEN', results)
  local old = redis.call('ZRANGEBYSCORE', keeping, '-inf', now, 'LIMIT', 0, 2)
  local field_value = session_answer(call_number, seconds, '1 0 0')
  redis.call('HDEL', records, id)
  redis.call('ZREM', prepare, id)
  redis.call('ZADD', keeping, now + keep, id)
  redis.call('HSET', results, id, letter .. write48(now) .. string.sub(given, 2))
  if #old > 0 then
    redis.call('ZREM', keeping, unpack(old))
    redis.call('HDEL', results, unpack(old))
  end
  publish_results('done', { id })
  redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, field_value)
  return '1 0 0'
until true
