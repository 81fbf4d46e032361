--[[
Short form of ack: settle one delivery, in a session that the slot knows. The slot is not in order
and not audited, and has neither failed messages nor requests to cancel. Most acks are of that kind.
The short form creates no function, and reads only what this kind of delivery needs. If a guard
fails, ack.lua continues with the long form, which does the same for every delivery.

Reads: audited blocked call call_number cancelling created grouped history
  history_state large last_call offloaded outcomes session settled
]]
--- @include "lib/split_call"
--- @include "lib/member"
--- @include "lib/leases/receipt"
--- @include "lib/read_time"
--- @include "lib/scores/score_text"
--- @include "lib/session"
--- @include "lib/settle/count_failed"
repeat
  if not last_call or not created or #ARGV ~= RUNS_FROM + 3 then
    break -- a new session removes unused sessions; several deliveries share their work
  end
  if blocked or audited then
    break -- other consumers may wait for this ack, or the numbers of messages are counted
  end
  if large or offloaded or cancelling or outcomes then
    break -- the message may have a body, a request or a result besides its record
  end
  if grouped and history then
    break -- each of them needs the record, and the short form reads it for one of them
  end
  local receipt, id = ARGV[RUNS_FROM + 1], ARGV[RUNS_FROM + 3]
  if string.byte(call, 1) ~= SESSION_SIGN then
    break -- the long form refuses the name of the session
  end
  if string.byte(id, 1) >= KEPT then
    break -- the sender keeps the id, so the slot remembers it as settled
  end
  local is_next = is_next_call(last_call, call_number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  local score = redis.call('ZSCORE', prepare, id)
  local is_valid = score and (score == receipt or tonumber(score) == tonumber(receipt))
  if not is_valid then
    break -- the lease has expired, or the message is settled
  end
  local failed = count_failed()
  if failed > 0 then
    break -- the message may have a failure entry
  end

  local now, _, seconds = read_time(ARGV[1])
  local answer = session_answer(call_number, seconds, '1')
  if not grouped then
    local state = nil
    if history then
      --- @include "lib/history/add_entry"
      local record = redis.call('HGET', records, id) or ''
      local packed = id .. struct.pack('>I4', #record) .. record
      local size = #record + KEPT_MESSAGE
      state = add_entry(packed, size, history, history_state, now)
    end
    redis.call('HDEL', records, id)
    redis.call('ZREM', prepare, id)
    if state then
      redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, answer, 'acked',
        state)
    else
      redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, answer)
    end
    return '1'
  end

  --- @include "lib/groups/group_alone"
  local record = redis.call('HGET', records, id) or ''
  local group = plain_group(string.byte(record, 1) or 0, record, FIXED + 1)
  if not group then
    break -- it has a weight, a share, or no group
  end
  local field = '/' .. group
  local text, vtime, waiting = unpack(redis.call('HMGET', slot, field, 'vtime', 'waiting'))
  if not text then
    break -- the group has no entry
  end
  local entry, next_id, priority, tag = entry_without(text, tonumber(vtime or 0), id)
  if not entry then
    break -- the group has to be searched for its next message
  end

  local next_score
  if next_id then
    local step = score_step(priority)
    next_score = score_text(priority, 0.5 - tag * step)
    redis.call('ZCARD', store) -- a wrong type is an error before the first write
  end
  redis.call('HDEL', records, id)
  redis.call('ZREM', prepare, id)
  if next_id then
    redis.call('ZADD', store, 'XX', next_score, next_id)
  end
  if entry == GROUP_ENDED then
    redis.call('HDEL', slot, field)
    redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, answer)
    return '1'
  end
  redis.call('HSET', slot, 'settled', tonumber(settled or 0) + 1, session, answer, field, entry)
  if next_id and waiting and tonumber(waiting) > now then
    --- @include "lib/wake/wake"
    wake(ARGV[3], ARGV[4])
  end
  return '1'
until true
