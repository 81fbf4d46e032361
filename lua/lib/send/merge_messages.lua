-- Range-merge, for merge and publish. A window begins with a message that is stored. Until that
-- message is taken, messages with the same merge key merge into it.
--- @needs slot store records merge
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/member"
--- @include "lib/scores/score_ranges"
--- @include "lib/scores/timed_score"
--- @include "lib/records/record_bytes"
--- @include "lib/results/keep_mark"
--- @include "lib/send/send_status"
--- @include "lib/slot_fields"
local MERGED_MOST = 16777216 -- bytes of a merged body
local OF_EACH = 3 -- arguments of each message: options, envelope, body
local READ_MOST = 131072 -- bytes of waiting records, after which no other record is read
local SIZE_BYTES = 4 -- in front of each element of a list: its size

-- Return a body as an element of a collected list.
--- @inline
local function element(body)
  return struct.pack('>I4', #body) .. body
end

-- Parse the options of a message. Return them, and the member of the message. Most messages of a
-- call have the same options.
--- @inline
local function read_options(text)
  local head = string.sub(text, 1, HEAD)
  local mode, max_wait, max_bytes, member =
    string.match(text, '^(%l+) (%d+) (%d+) (.*)$', HEAD + 1)
  if not mode then
    fail('ARG', 'options')
  end
  local first_byte, priority = split_head(head)
  max_wait, max_bytes = tonumber(max_wait), tonumber(max_bytes)
  if priority > 0 and (priority < PRIORITY_MIN or priority >= PRIORITY_END) then
    fail('ARG', 'priority')
  end
  if max_wait >= TIMED_MIN then
    fail('ARG', 'max_wait_ms')
  end
  if max_bytes < 1 or max_bytes > MERGED_MOST then
    fail('ARG', 'max_bytes')
  end
  local options = { head = head, codec = math.floor(first_byte / CODEC_STEP),
    expires = first_byte % (2 * EXPIRES) >= EXPIRES,
    has_headers = first_byte % CODEC_STEP >= HEADERS, has_priority = priority > 0 and 1 or 0,
    mode = mode, max_wait = max_wait, max_bytes = max_bytes }
  return options, member
end

-- Return the merge key of a message. `rest`: its envelope, which is the record from byte 9 on.
--- @inline
local function read_key(rest, expires)
  local key_at = 1 + (expires and 2 * TIME_BYTES or TIME_BYTES)
  local a, b = string.byte(rest, key_at, key_at + 1)
  local range, last = read48(rest, 1), b and key_at + 1 + a * 256 + b or #rest + 1
  if range < 1 or range >= TIMED_MIN or last > #rest then
    fail('ARG', 'time_range')
  end
  return string.sub(rest, key_at + 2, last)
end

-- Parse the messages of a call. `given` has, from at + 1 on, options, envelope and body of each of
-- `count` messages. `is_known`: whether the slot knows the session of the call. Return a table:
-- - given, at, count: the parameters
-- - options, ids, key_places: lists by message; a key place is the place of its key in `keys`
-- - keys: the merge keys, each once
-- - looked_up: how many messages may be duplicates. The ids of a run (lib/send/run_members) were
--   made for this call, so they are new if the slot knows the session
--- @inline
local function read_messages(given, at, count, is_known)
  local each_options, ids, key_places, keys, options, places, is_run
  for i = 1, count do
    local text, rest, member = given[at + OF_EACH * i - 2], given[at + OF_EACH * i - 1], ''
    if text ~= '' or i == 1 then
      options, member = read_options(text)
    end
    local key = read_key(rest, options.expires)
    if i == 1 then -- the lists begin with one element: for a single message, growing is expensive
      each_options, ids, key_places, keys = { options }, { member }, { 1 }, { key }
      places = count > 1 and { [key] = 1 }
    else
      if i == 2 and member == '' then
        --- @include "lib/send/run_members"
        is_run, ids = true, run_members(ids[1], count)
      elseif not is_run then
        ids[i] = member
      end
      if not places[key] then
        keys[#keys + 1] = key
        places[key] = #keys
      end
      each_options[i], key_places[i] = options, places[key]
    end
    if #ids[i] ~= MEMBER or is_run and member ~= '' then
      fail('ARG', 'id')
    end
  end
  return { given = given, at = at, count = count, options = each_options, ids = ids,
    key_places = key_places, keys = keys, looked_up = is_run and is_known and 1 or count }
end

-- Find the open windows. Return two lists by the place of their key: the entry of the merge index,
-- and the score of the member in the entry; false if there is none. The second list is nil if there
-- is no entry.
--- @inline
local function find_targets(keys)
  local opened, members = redis.call('HMGET', merge, unpack(keys)), nil
  for place = 1, #keys do
    if opened[place] and not members then
      members = {}
    end
  end
  if not members then
    return opened, nil
  end
  for place = 1, #keys do
    members[place] = opened[place] and string.sub(opened[place], 1, MEMBER) or ''
  end
  return opened, redis.call('ZMSCORE', store, unpack(members))
end

-- Return the expiry of a merging record, or nil; and where its body begins. The second is nil if
-- the record cannot be read.
--- @inline
local function body_in(record)
  local first_byte, expiry_at = string.byte(record, 1), FIXED + TIME_BYTES + 1
  local key_at, expiry = expiry_at, nil
  if not first_byte or first_byte % (2 * TIMED) < TIMED or first_byte % (2 * MERGES) < MERGES then
    return nil, nil
  end
  if first_byte % (2 * EXPIRES) >= EXPIRES then
    key_at = expiry_at + TIME_BYTES
    expiry = #record >= key_at and read48(record, expiry_at)
  end
  local a, b = string.byte(record, key_at, key_at + 1)
  if not b then
    return expiry, nil
  end
  local body_at = key_at + 2 + a * 256 + b
  if first_byte % (2 * HEADERS) >= HEADERS then
    body_at = #record > body_at and body_at + 2 + struct.unpack('>I2', record, body_at)
  end
  return expiry, body_at
end

-- Return a window. Return nil if the record cannot be read: then the new message is stored, not
-- merged.
-- - id, record, score: of the waiting message
-- - opened: when the window was opened, epoch ms
-- - new: nil, or the place of the waiting message among the messages that this call stores
-- - next: the window that was read before, for the list of all windows
--
-- Other functions set `changed` if the record must be written, and `moved` if the score must.
--- @inline
local function read_window(id, record, score, opened, new, next)
  local expiry, body_at = body_in(record)
  if not body_at or #record < body_at - 1 then
    return nil
  end
  return { id = id, score = score, opened = opened, expiry = expiry, body_at = body_at,
    parts = { record }, size = #record, new = new, next = next }
end

-- Return whether a body fits into the list of a window: the list has room and the same codec.
--- @inline
local function has_room(window, options, body)
  local first_byte = string.byte(window.parts[1], 1)
  -- The first body of a new list also becomes an element.
  local is_list = first_byte % (2 * COLLECTS) >= COLLECTS
  local size = window.size + (is_list and SIZE_BYTES or 2 * SIZE_BYTES) + #body
  return size <= options.max_bytes and math.floor(first_byte / CODEC_STEP) == options.codec
end

-- Add a body to a window. The envelope before the body does not change. A list stays a list, so
-- producers of different modes leave a readable body.
--- @inline
local function add_body(window, options, body)
  local parts, body_at = window.parts, window.body_at
  local first_byte = string.byte(parts[1], 1)
  local is_list = first_byte % (2 * COLLECTS) >= COLLECTS
  local added = body
  if is_list or options.mode ~= 'last' then
    added = element(body)
  end
  window.changed = true
  if is_list and options.mode ~= 'last' then
    parts[#parts + 1] = added
    window.size = window.size + #added
    return
  end
  local before = string.sub(parts[1], 2, body_at - 1)
  if options.mode == 'last' then
    local new_byte = options.codec * CODEC_STEP + first_byte % CODEC_STEP
    window.parts = { string.char(new_byte) .. before, added }
    window.size = body_at - 1 + #added
  else
    local old_body = string.sub(table.concat(parts), body_at)
    local old = element(old_body)
    window.parts = { string.char(first_byte + COLLECTS) .. before, old, added }
    window.size = window.size + SIZE_BYTES + #added
  end
end

-- Move the consume time of a window to `due`, at most until max_wait after the window was opened.
-- An earlier time changes nothing.
--- @inline
local function put_off(window, due, max_wait)
  local score = tonumber(window.score)
  local was_due = math.floor(score)
  due = math.min(due, window.opened + max_wait)
  if score < TIMED_MIN or due <= was_due then
    return
  end
  local _, has_priority = timed_fraction(score)
  window.score = next_timed_score(due, has_priority)
  window.due, window.later = due, (window.later or 0) + due - was_due
  window.changed, window.moved = true, true
end

-- Return the changed record of a window.
--- @inline
local function record_of(window)
  local parts = window.parts
  if window.due then
    local expiry = window.expiry and write48(window.expiry + window.later) or ''
    table.insert(parts, 1, string.sub(parts[1], 1, FIXED) .. write48(window.due) .. expiry)
    parts[2] = string.sub(parts[2], FIXED + TIME_BYTES + 1 + #expiry)
  end
  return table.concat(parts)
end

-- Put a pair into a list of pairs: at a place, or at the end. Return the list. A new list is
-- created with its first pair, which costs less.
--- @inline
local function with_pair(pairs, place, a, b)
  if not pairs then
    return { a, b }
  end
  place = place or #pairs / 2 + 1
  pairs[2 * place - 1], pairs[2 * place] = a, b
  return pairs
end

-- Write the new messages of a plan, and the windows that have changed.
--- @inline
local function write_windows(plan)
  local new_records, new_scores, window = plan.records, plan.scores, plan.window
  while window do
    if window.changed then
      local record = record_of(window)
      new_records = with_pair(new_records, window.new, window.id, record)
    end
    if window.moved then
      new_scores = with_pair(new_scores, window.new, window.score, window.id)
    end
    window = window.next
  end
  if new_records then
    redis.call('HSET', records, unpack(new_records))
  end
  if new_scores then
    add_members(store, new_scores, #new_scores / 2)
  end
end

-- Return the window at a place, or nil; and whether READ_MOST is reached, so that no other record
-- is read. `opened`, `score`: from find_targets.
--- @inline
local function window_at(plan, place, options, opened, score, now)
  local window = plan.windows[place]
  if window and type(window) == 'table' then
    return window, false
  end
  if window then -- it was opened by this call
    if options.mode == 'first' and options.max_wait == 0 and not plan.keep then
      return nil, false -- the message changes nothing of the window
    end
    local new = window
    local id, record = plan.records[2 * new - 1], plan.records[2 * new]
    window = read_window(id, record, plan.scores[2 * new - 1], now, new, plan.window)
    plan.windows[place], plan.window = window, window
    return window, false
  end
  if not score then
    return nil, false
  end
  if plan.read > READ_MOST then
    return nil, true
  end
  local id, since = string.sub(opened, 1, MEMBER), string.sub(opened, MEMBER + 1)
  local record = redis.call('HGET', records, id) or ''
  window = read_window(id, record, score, tonumber(since), nil, plan.window)
  plan.window, plan.read = window or plan.window, plan.read + #record
  if window and window.expiry and window.expiry <= now then
    return nil, false -- it will be a dead letter; a message that merged into it would be lost
  end
  plan.windows[place] = window
  return window, false
end

-- Note in a plan that a message merges into the message `target`. `remembers`: whether an id that
-- its sender keeps is remembered as settled.
--- @inline
local function note_merged(plan, target, id, remembers)
  local into = plan.into
  if into then
    into[#into + 1] = target
  else
    plan.into = { target }
  end
  if remembers and string.byte(id, 1) >= KEPT then
    plan.kept = plan.kept or {}
    plan.kept[#plan.kept + 1] = id
  end
end

-- Let the waiting message of a window keep its result, because a message that merges into it does.
local function keep_result(window, keep)
  local record = window.parts[1]
  if keep_of(record) then
    return
  end
  local marked = with_mark(record, window.body_at, keep)
  window.parts[1], window.changed = marked, true
  window.body_at = window.body_at + #marked - #record
  window.size = window.size + #marked - #record
end

-- Note in a plan for how long a new message keeps its result, or nil. `rest`: its envelope.
--- @inline
local function note_keep(plan, options, rest)
  -- keep_of does not read the 4 bytes of the acceptance number, which is not known yet.
  plan.keep = options.has_headers and keep_of(options.head .. 'any4' .. rest) or nil
  plan.keeps = plan.keeps or plan.keep
end

-- Change a window for a message that merges into it. `rest`, `body`, `keep`: of the merging
-- message.
--- @inline
local function change_window(window, options, rest, body, now, keep)
  if keep then
    keep_result(window, keep)
  end
  if options.mode ~= 'first' then
    add_body(window, options, body)
  end
  if options.max_wait > 0 then
    put_off(window, now + read48(rest, 1), options.max_wait)
  end
end

-- Note in a plan when a new message is due. Most messages of a call have the same time range.
--- @inline
local function note_range(plan, rest, now)
  local range = string.sub(rest, 1, TIME_BYTES)
  if plan.range ~= range then
    local due = now + read48(rest, 1)
    plan.range, plan.due, plan.due_bytes = range, due, write48(due)
    plan.opened = plan.opened or string.format('%.0f', now)
    plan.earliest = math.min(plan.earliest or due, due)
  end
end

-- Add a new message to a plan: its record, its score and the entry of its key.
--- @inline
local function open_window(plan, options, id, key, rest, body)
  local due, n = plan.due, plan.count + 1
  local last, number = 2 * n, struct.pack('>I4', (plan.accepted + n) % ACCEPTED_CYCLE)
  local after_due
  if options.expires then
    local expiry = due + read48(rest, TIME_BYTES + 1)
    after_due = write48(expiry) .. string.sub(rest, 2 * TIME_BYTES + 1)
  else
    after_due = string.sub(rest, TIME_BYTES + 1)
  end
  if options.mode == 'collect' then
    body = element(body)
  end
  local record = options.head .. number .. plan.due_bytes .. after_due .. body
  local score = next_timed_score(due, options.has_priority)
  if n == 1 then -- the lists begin with a pair: for a single message, growing is expensive
    plan.records, plan.scores = { id, record }, { score, id }
    plan.entries = { key, id .. plan.opened }
  else
    plan.records[last - 1], plan.records[last] = id, record
    plan.scores[last - 1], plan.scores[last] = score, id
    plan.entries[last - 1], plan.entries[last] = key, id .. plan.opened
  end
  plan.count = n
end

-- Plan all changes in memory. Return the plan, and a letter for each message. There are fewer
-- letters than messages if READ_MOST was reached. The plan has:
-- - into: members that messages merged into, or nil; kept: merged ids to be remembered, or nil
-- - count, records, scores, entries: number of new messages, and lists of pairs, or nil
-- - windows: by the place of their key. A number is the place of a new message whose window was not
--   read
-- - window: the last window that was read; earliest: when the first new message is due
-- - keep: for how long the last message keeps its result, ms, or nil; keeps: true if a message does
--
-- `opened`, `scores`: from find_targets. `settled`: 1 for each settled id, or nil.
--- @inline
local function plan_merges(messages, opened, scores, settled, fields, now)
  local letters, windows, looked_up = { '' }, { false }, messages.looked_up
  local added = looked_up > 1 and {}
  local given, ids, each_options = messages.given, messages.ids, messages.options
  local key_places = messages.key_places
  local accepted, remembers = tonumber(fields[ACCEPTED] or 0), tonumber(fields[DEDUP_MS]) > 0
  -- Nine fields are named, so that the table has room for 16 and does not grow.
  local plan = { windows = windows, window = nil, count = 0, accepted = accepted, read = 0,
    range = nil, due = nil, due_bytes = nil, opened = nil }
  for i = 1, messages.count do
    local id, place, options = ids[i], key_places[i], each_options[i]
    local body_at, letter = messages.at + OF_EACH * i, 'd'
    local rest, body = given[body_at - 1], given[body_at]
    local is_repeated = i <= looked_up and (added and added[id] or settled and settled[i] == 1
      or redis.call('HEXISTS', records, id) == 1)
    if not is_repeated then
      note_keep(plan, options, rest)
      local score = scores and scores[place]
      local window, is_full = window_at(plan, place, options, opened[place], score, now)
      if is_full then
        break
      end
      local merges = window or windows[place]
      if window and options.mode == 'collect' then
        merges = has_room(window, options, body)
      end
      if not merges then
        letter = 's'
        note_range(plan, rest, now)
        open_window(plan, options, id, messages.keys[place], rest, body)
        windows[place] = plan.count
      else
        letter = 'm'
        local target = window and window.id or plan.records[2 * windows[place] - 1]
        note_merged(plan, target, id, remembers)
        change_window(window, options, rest, body, now, plan.keep)
      end
    end
    letters[i] = letter
    local kept = plan.kept
    if added and (letter == 's' or kept and kept[#kept] == id) then
      added[id] = true
    end
  end
  return plan, letters
end

-- Return whether to wake sleeping consumers: the first new message is due before all others.
--- @inline
local function is_first_due(plan, fields, now)
  if plan.count == 0 or not fields[WAITING] or tonumber(fields[WAITING]) <= now then
    return false
  end
  local first =
    redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)[2]
  return not first or plan.earliest < tonumber(first)
end

-- Return whether a message of a call expires.
--- @inline
local function any_expires(messages)
  local expires, options = false, messages.options
  for i = 1, messages.count do
    expires = expires or options[i].expires
  end
  return expires
end

-- Store messages, or merge each into the waiting message with the same merge key. Return the answer
-- of merge.lua, whether anything was written, and whether a message was stored. In the last case
-- the caller writes the first element of the answer to `accepted` of the slot. All reads are before
-- the first write, and windows change in memory. So a refused call changes nothing, and a record is
-- written once.
-- - messages: from read_messages
-- - fields: from read_store_fields
--- @inline
local function merge_messages(messages, fields, now, channel, index)
  local dedup_ms, last_turn = tonumber(fields[DEDUP_MS]), tonumber(fields[SETTLED_TURN])
  local opened, scores = find_targets(messages.keys)
  local settled = nil
  if dedup_ms > 0 then
    --- @include "lib/send/dedup_window"
    settled = find_settled(dedup_ms, last_turn, now, messages.ids, 1, messages.looked_up)
  end
  local plan, letters = plan_merges(messages, opened, scores, settled, fields, now)

  local count, capacity, excess, drop_lowest = plan.count, tonumber(fields[CAPACITY]), 0, nil
  if count > 0 and capacity > 0 then
    excess = redis.call('ZCARD', store) + count - capacity
  end
  if excess > 0 and fields[OVERFLOW] == 'drop_lowest' and count <= capacity then
    --- @include "lib/send/plan_drop_lowest"
    drop_lowest = plan_drop_lowest(excess, plan.records, now)
  end
  if excess > 0 and not drop_lowest then
    return { 0, FULL, '' }, false, false
  end
  if plan.kept then -- a wrong type shows before the first write
    --- @include "lib/send/dedup_window"
    check_settled_sets(dedup_ms, last_turn, now)
  end
  local wakes = is_first_due(plan, fields, now)

  write_windows(plan)
  if plan.keeps then
    redis.call('HSET', slot, 'outcomes', 1)
  end
  if drop_lowest then
    drop_lowest()
  end
  if count > 0 then
    set_fields(merge, plan.entries, count)
    local expires = any_expires(messages)
    if expires then
      redis.call('HDEL', slot, 'no_expiry')
    end
  end
  if plan.into then
    redis.call('HINCRBY', slot, 'merged', #plan.into)
  end
  if plan.kept then
    --- @include "lib/send/dedup_window"
    remember_settled(dedup_ms, last_turn, now, plan.kept)
  end
  if wakes then
    --- @include "lib/wake/wake"
    wake(channel, index)
  end
  local into = plan.into and table.concat(plan.into) or ''
  local answer = { plan.accepted + count, table.concat(letters), into }
  return answer, count > 0 or plan.into, count > 0
end
