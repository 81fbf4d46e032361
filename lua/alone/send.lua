--[[
Short form of send: store one message without a time, a merge key or a large body, in a session that
continues. Most sends are of that kind. The short form creates no function, and reads only what this
kind of message needs. It ends at the first guard that does not hold; then send.lua continues with
the long form, which does the same for every message.

Reads: BEFORE call fields first head known number session
]]
--- @include "lib/add"
--- @include "lib/split_call"
--- @include "lib/scores/counters"
--- @include "lib/member"
--- @include "lib/records/record"
--- @include "lib/scores/score_ranges"
--- @include "lib/scores/score_text"
--- @include "lib/session"
--- @include "lib/slot_fields"
--- @include "lib/read_time"
repeat
  if not known or ARGV[6] ~= '1' or #ARGV ~= BEFORE + 2 then
    break -- the ids of a new session are looked up; several messages share their work
  end
  if #head ~= HEAD or #first ~= MEMBER or string.byte(call, 1) ~= AT then
    break -- the long form names the argument that is wrong
  end
  if fields[CREATED] ~= ARGV[5] or fields[CAPACITY] ~= '0' or fields[PAUSED_SEND] then
    break
  end
  local is_next = is_next_call(known, number)
  if not is_next then
    break -- a call that arrives twice gets its first answer
  end
  local rest = ARGV[BEFORE + 2]
  local flags, priority = split_head(head)
  if flags % HEADERS > 0 or priority < PRIORITY_MIN or priority >= PRIORITY_END then
    break
  end
  local is_coded = flags >= CODED and flags < CODED_END
  if is_coded and (flags > CODED or string.byte(rest, 1) == OFFLOADED) then
    break -- the body is offloaded; or it is behind headers, where the long form looks for it
  end
  local order, accepted = tonumber(fields[ORDER] or 0) + 1, tonumber(fields[ACCEPTED] or 0) + 1
  if order >= RESTART or tonumber(fields[FRONT] or 0) <= -RESTART then
    break -- a counter may have to restart
  end
  local group, score, entry, lane, made
  if fields[GROUPS] then
    --- @include "lib/groups/enter_alone"
    group = plain_group(flags, rest, 1)
    if not group then
      break -- a weight, a share, or no group
    end
    score, entry, lane, made = enter_alone(fields[GROUPS], group, first, priority)
    if not score then
      break -- the group has to be searched, or another message of it goes first
    end
  end

  local now, _, seconds = read_time(ARGV[1])
  local record = head .. struct.pack('>I4', accepted % ACCEPTED_CYCLE) .. rest
  local answer = session_answer(number, seconds, accepted .. ':')
  local consumer_sleeps = fields[WAITING] and tonumber(fields[WAITING]) > now
  if consumer_sleeps and not group then
    --- @include "lib/wake/hand_over_alone"
    local message = { member = first, record = record, accepted = accepted, order = order,
      session = session, answer = answer, seconds = seconds }
    local is_handed_over, needs_long_form = hand_over_alone(message, ARGV[4], now)
    if is_handed_over then
      return { accepted, '' }
    end
    if needs_long_form then
      break
    end
  end
  if redis.call('HEXISTS', records, first) == 1 then
    break -- a duplicate
  end
  if not group then
    local step = score_step(priority)
    score = score_text(priority, 0.5 - order * step)
  end

  add_single(store, score, first, accepted)
  redis.call('HSET', records, first, record)
  if group then
    redis.call('HSET', slot, 'accepted', accepted, session, answer, '/' .. group, entry,
      'lane', lane, 'groups_made', made)
  else
    redis.call('HSET', slot, 'accepted', accepted, 'order', order, session, answer)
  end
  if consumer_sleeps and string.byte(score, 1) ~= MINUS then
    --- @include "lib/wake/wake"
    wake(ARGV[3], ARGV[4])
  end
  return { accepted, '' }
until true
