--[[
Short form of send: store one plain message, that is one without a time, a merge key or a large
body, in a session that the slot knows. Most sends are of that kind. The short form reads only what
this kind of message needs. It creates functions only if a consumer sleeps. If a guard fails,
send.lua continues with the long form, which does the same for every message.

Reads: BEFORE call call_number fields first_member head last_call session
]]
--- @include "lib/add"
--- @include "lib/split_call"
--- @include "lib/scores/counters"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/results/keep_header"
--- @include "lib/scores/score_ranges"
--- @include "lib/scores/score_text"
--- @include "lib/session"
--- @include "lib/slot_fields"
--- @include "lib/read_time"
repeat
  if not last_call or ARGV[6] ~= '1' or #ARGV ~= BEFORE + 2 then
    break -- the ids of a new session are looked up; several messages share their work
  end
  if #head ~= HEAD or #first_member ~= MEMBER or string.byte(call, 1) ~= SESSION_SIGN then
    break -- the long form names the wrong argument
  end
  if fields[CREATED] ~= ARGV[5] then
    break -- the topic was deleted or created again: the long form reports an error
  end
  if fields[CAPACITY] ~= '0' or fields[PAUSED_SEND] then
    break -- the slot may be full, or sends are paused
  end
  local is_next = is_next_call(last_call, call_number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  local rest = ARGV[BEFORE + 2]
  local first_byte, priority = split_head(head)
  if first_byte % HEADERS > 0 or priority < PRIORITY_MIN or priority >= PRIORITY_END then
    break -- the message has a time, an expiry, a merge key or a large body
  end
  local is_coded = first_byte >= CODED and first_byte < CODED_END
  if is_coded and (first_byte > CODED or string.byte(rest, 1) == OFFLOADED) then
    break -- the body is offloaded, or may be: it is behind headers
  end
  local has_headers = first_byte % CODEC_STEP >= HEADERS
  if has_headers and not fields[OUTCOMES] and string.find(rest, KEEP_HEADER, 1, true) then
    break -- the message keeps its result, and is the first in the slot that does
  end
  local order, accepted = tonumber(fields[ORDER] or 0) + 1, tonumber(fields[ACCEPTED] or 0) + 1
  if order >= RESTART or tonumber(fields[FRONT] or 0) <= -RESTART then
    break -- a counter may have to restart
  end
  local group, score, entry, lane, groups_made
  if fields[GROUPS] then
    --- @include "lib/groups/enter_alone"
    group = plain_group(first_byte, rest, 1)
    if not group then
      break -- it has a weight, a share, or no group
    end
    score, entry, lane, groups_made = enter_alone(fields[GROUPS], group, first_member, priority)
    if not score then
      break -- the group has to be searched, or another message of it goes first
    end
  end

  local now, _, seconds = read_time(ARGV[1])
  local record = head .. struct.pack('>I4', accepted % ACCEPTED_CYCLE) .. rest
  local answer = session_answer(call_number, seconds, accepted .. ':')
  local consumer_sleeps = fields[WAITING] and tonumber(fields[WAITING]) > now
  if consumer_sleeps and not group then
    --- @include "lib/wake/hand_over_alone"
    local message = { member = first_member, record = record, accepted = accepted, order = order,
      session = session, answer = answer, seconds = seconds }
    local is_handed_over, needs_long_form = hand_over_alone(message, ARGV[4], now)
    if is_handed_over then
      return { accepted, '' }
    end
    if needs_long_form then
      break -- other messages also wait, or this message is large
    end
  end
  if redis.call('HEXISTS', records, first_member) == 1 then
    break -- a duplicate
  end
  if not group then
    local step = score_step(priority)
    score = score_text(priority, 0.5 - order * step)
  end

  add_single(store, score, first_member, accepted)
  redis.call('HSET', records, first_member, record)
  if group then
    redis.call('HSET', slot, 'accepted', accepted, session, answer, '/' .. group, entry,
      'lane', lane, 'groups_made', groups_made)
  else
    redis.call('HSET', slot, 'accepted', accepted, 'order', order, session, answer)
  end
  local is_held_in_group = string.byte(score, 1) == MINUS
  if consumer_sleeps and not is_held_in_group then
    --- @include "lib/wake/wake"
    wake(ARGV[3], ARGV[4])
  end
  return { accepted, '' }
until true
