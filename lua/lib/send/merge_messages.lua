-- Range-merge of messages, for merge and publish.
--- @needs slot store records merge
--- @include "lib/add"
--- @include "lib/check"
--- @include "lib/member"
--- @include "lib/scores/score_ranges"
--- @include "lib/scores/timed_score"
--- @include "lib/records/record_bytes"
--- @include "lib/slot_fields"
local MERGED_MOST = 16777216 -- bytes of a merged body
local OF_EACH = 3 -- arguments of a message: options, envelope, body
local READ_MOST = 131072 -- bytes of waiting records after which no other is read: each may be written again

-- An element of a collected list.
local function element(text)
  return struct.pack('>I4', #text) .. text
end

-- The options of a message, which most others of a call have in common with it, and its member.
--- @inline
local function read_options(text)
  local head = string.sub(text, 1, HEAD)
  local mode, max_wait, max_bytes, member = string.match(text, '^(%l+) (%d+) (%d+) (.*)$', HEAD + 1)
  if not mode then
    fail('ARG', 'options')
  end
  local first, a, b, c = string.byte(head, 1, HEAD)
  local priority = a * 65536 + b * 256 + c
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
  return { head = head, codec = math.floor(first / 32), expires = first % 4 >= EXPIRES, has_priority = priority > 0 and 1 or 0,
    mode = mode, max_wait = max_wait, max_bytes = max_bytes }, member
end

-- The merge key in the envelope of a message that is sent.
--- @inline
local function read_key(rest, expires)
  local key_at = expires and 13 or 7
  local a, b = string.byte(rest, key_at, key_at + 1)
  local range, last = read48(rest, 1), b and key_at + 1 + a * 256 + b or #rest + 1
  if range < 1 or range >= TIMED_MIN or last > #rest then
    fail('ARG', 'time_range')
  end
  return string.sub(rest, key_at + 2, last)
end

-- By message its options, its id and the place of its key; the keys; whether the ids are a run (lib/send/run_members).
--- @inline
local function read_messages(given, at, count)
  local options, each_options, ids, key_places, keys, places, is_run
  for i = 1, count do
    local text, rest, member = given[at + OF_EACH * i - 2], given[at + OF_EACH * i - 1], ''
    if text ~= '' or i == 1 then
      options, member = read_options(text)
    end
    local key = read_key(rest, options.expires)
    if i == 1 then -- lists that are made with what a single message needs: growing costs it more than anything else
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
  return each_options, ids, key_places, keys, is_run
end

-- By the place of a key: the entry of the merge index, or false; its member, and that one's score, or false. No entry: no members.
--- @inline
local function find_targets(keys)
  local opened, members, scores = redis.call('HMGET', merge, unpack(keys)), nil, nil
  for place = 1, #keys do
    if opened[place] and not members then
      members = {}
    end
  end
  if members then
    for place = 1, #keys do
      members[place] = opened[place] and string.sub(opened[place], 1, MEMBER) or ''
    end
    scores = redis.call('ZMSCORE', store, unpack(members))
  end
  return opened, members, scores
end

-- A window, by the record of the message that waits for others; `score`: of that message, `opened`: when, epoch ms; `new`: its
-- place among the messages that this call stores, or nil; `next`: the window that was read before. Returns nil if the record cannot
-- be read. Then the new message is stored instead of merged.
--- @inline
local function read_window(id, record, score, opened, new, next)
  local first, key_at, body_at, expiry = string.byte(record, 1), 15, nil, nil
  if first and first % 2 >= TIMED and first % 8 >= MERGES then
    if first % 4 >= EXPIRES then
      expiry, key_at = #record > 20 and read48(record, 15), 21
    end
    local a, b = string.byte(record, key_at, key_at + 1)
    body_at = b and key_at + 2 + a * 256 + b
    if body_at and first % 32 >= HEADERS then
      body_at = #record > body_at and body_at + 2 + struct.unpack('>I2', record, body_at)
    end
  end
  local is_readable = body_at and #record >= body_at - 1
  return is_readable and { id = id, score = score, opened = opened, expiry = expiry, body_at = body_at, parts = { record },
    size = #record, new = new, next = next, changed = false, moved = false } or nil
end

-- Whether a body may join the list of a window: it may be full, or of another codec.
--- @inline
local function has_room(window, options, body)
  local first = string.byte(window.parts[1], 1)
  local size = window.size + (first % 16 >= COLLECTS and 4 or 8) + #body
  return size <= options.max_bytes and math.floor(first / 32) == options.codec
end

-- Add a body to a window. The envelope stays, however the body behind it changes; and a list stays a list, so that producers of
-- different modes leave a body that can be read.
--- @inline
local function add_body(window, options, body)
  local parts, body_at, first = window.parts, window.body_at, string.byte(window.parts[1], 1)
  local collects = first % 16 >= COLLECTS
  if options.mode == 'last' then
    body = collects and element(body) or body
    window.parts = { string.char(options.codec * 32 + first % 32) .. string.sub(parts[1], 2, body_at - 1), body }
    window.size = body_at - 1 + #body
  elseif collects then
    parts[#parts + 1] = element(body)
    window.size = window.size + 4 + #body
  else
    local old = string.sub(table.concat(parts), body_at)
    window.parts = { string.char(first + COLLECTS) .. string.sub(parts[1], 2, body_at - 1), element(old), element(body) }
    window.size = window.size + 8 + #body
  end
  window.changed = true
end

-- Put a window off until that of the message that merges into it is over, but no longer than max_wait after its own has opened;
-- nothing where that is no later.
--- @inline
local function put_off(window, due, max_wait)
  local score = tonumber(window.score)
  local was_due = math.floor(score)
  due = math.min(due, window.opened + max_wait)
  if score >= TIMED_MIN and due > was_due then
    local _, has_priority = timed_fraction(score)
    window.score = next_timed_score(due, has_priority)
    window.due, window.later = due, (window.later or 0) + due - was_due
    window.changed, window.moved = true, true
  end
end

-- The record of a message that opens a window.
--- @inline
local function new_record(options, rest, body, accepted, due, due_bytes)
  local after_due = options.expires and write48(due + read48(rest, 7)) .. string.sub(rest, 13) or string.sub(rest, 7)
  return options.head .. struct.pack('>I4', accepted % ACCEPTED_CYCLE) .. due_bytes .. after_due
    .. (options.mode == 'collect' and element(body) or body)
end

-- The record of a window as it is now.
--- @inline
local function record_of(window)
  local parts = window.parts
  if window.due then
    local expiry = window.expiry and write48(window.expiry + window.later) or ''
    table.insert(parts, 1, string.sub(parts[1], 1, 8) .. write48(window.due) .. expiry)
    parts[2] = string.sub(parts[2], 15 + #expiry)
  end
  return table.concat(parts)
end

-- A list of pairs with another one: in the given place, or at the end. A list is made with its first pair, which costs less.
local function with_pair(pairs, place, a, b)
  if not pairs then
    return { a, b }
  end
  place = place or #pairs / 2 + 1
  pairs[2 * place - 1], pairs[2 * place] = a, b
  return pairs
end

-- Write records and scores: of new messages, in lists or nil, and of the windows that were read, of which `window` is the last.
--- @inline
local function write_windows(new_records, new_scores, window)
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

-- What messages change, worked out in memory: a letter for each; members of those that others merge into; merged ids that are kept,
-- or nil; how many are new; their records, scores and entries of the merge index, in turn; the last window that was read; when the
-- first new one is due. There are fewer letters than messages where READ_MOST is reached.
--- @inline
local function plan_merges(given, at, count, each_options, ids, key_places, keys, opened, members, scores, looked_up,
  settled, remembers, accepted, now)
  local letters, into, kept, n, new_records, new_scores, entries, last, earliest = { '' }, nil, nil, 0, nil, nil, nil, nil, nil
  -- By the place of a key: the place of its message among the new ones, and its window, once that was read.
  local new_places, windows, added, read = { false }, { false }, looked_up > 1 and {}, 0
  local range, due, due_bytes, opened_now
  for i = 1, count do
    local id, place, options, from = ids[i], key_places[i], each_options[i], at + OF_EACH * i
    local rest, body, window, new = given[from - 1], given[from], windows[place], new_places[place]
    if i <= looked_up and (added and added[id] or settled and settled[i] == 1 or redis.call('HEXISTS', records, id) == 1) then
      letters[i] = 'd'
    else
      if not window and new and (options.mode ~= 'first' or options.max_wait > 0) then
        window = read_window(new_records[2 * new - 1], new_records[2 * new], new_scores[2 * new - 1], now, new, last)
        windows[place], last = window, window
      elseif not window and not new and scores and scores[place] then
        if read > READ_MOST then
          break
        end
        local record, since = redis.call('HGET', records, members[place]) or '', string.sub(opened[place], MEMBER + 1)
        window = read_window(members[place], record, scores[place], tonumber(since), nil, last)
        windows[place], last, read = window, window or last, read + #record
        if window and window.expiry and window.expiry <= now then
          window = nil -- it goes to the DeadQueue next: a message that merges into it now would be lost with it
        end
      end
      local merges = window or new
      if window and options.mode == 'collect' then
        merges = has_room(window, options, body)
      end
      if merges then
        letters[i], into = 'm', into or {}
        into[#into + 1] = window and window.id or new_records[2 * new - 1]
        if options.mode ~= 'first' then
          add_body(window, options, body)
        end
        if options.max_wait > 0 then
          put_off(window, now + read48(rest, 1), options.max_wait)
        end
        if remembers and string.byte(id, 1) >= KEPT then
          kept = kept or {}
          kept[#kept + 1] = id
        end
      else
        n, accepted, letters[i] = n + 1, accepted + 1, 's'
        if n == 1 then
          new_records, new_scores, entries, opened_now = { '', '' }, { '', '' }, { '', '' }, string.format('%.0f', now)
        end
        if range ~= string.sub(rest, 1, 6) then -- most messages have it in common
          range, due = string.sub(rest, 1, 6), now + read48(rest, 1)
          due_bytes, earliest = write48(due), math.min(earliest or due, due)
        end
        local record = new_record(options, rest, body, accepted, due, due_bytes)
        new_records[2 * n - 1], new_records[2 * n] = id, record
        new_scores[2 * n - 1], new_scores[2 * n] = next_timed_score(due, options.has_priority), id
        entries[2 * n - 1], entries[2 * n] = keys[place], id .. opened_now
        new_places[place], windows[place] = n, false
      end
      if added and (letters[i] == 's' or kept and kept[#kept] == id) then
        added[id] = true
      end
    end
  end
  return letters, into, kept, n, new_records, new_scores, entries, last, earliest
end

-- Store messages, or merge each into the waiting one with the same merge key. `given` holds from at + 1 on, for each of `count`:
-- options, envelope, body; merge.lua describes them, and the answer. All that is read is read first, and windows change in memory
-- alone, so a refusal leaves nothing, and a record is written once. Returns also whether anything was written, and whether a
-- message was stored: then the caller writes the first of the answer to the slot's `accepted`.
--   fields: of read_store_fields
--- @inline
local function merge_messages(fields, given, at, count, now, channel, index)
  local dedup_ms, last_turn, capacity = tonumber(fields[DEDUP_MS]), tonumber(fields[SETTLED_TURN]), tonumber(fields[CAPACITY])
  local each_options, ids, key_places, merge_keys, is_run = read_messages(given, at, count)
  local opened, members, scores = find_targets(merge_keys)
  -- Ids that were made for this call are new where the slot knows the session (lib/replay).
  local looked_up, settled = is_run and fields[SESSION] and 1 or count, nil
  if dedup_ms > 0 then
    --- @include "lib/settle/settled"
    settled = find_settled(dedup_ms, last_turn, now, ids, 1, looked_up)
  end
  local accepted = tonumber(fields[ACCEPTED] or 0)
  local letters, into, kept, n, new_records, new_scores, entries, last, earliest =
    plan_merges(given, at, count, each_options, ids, key_places, merge_keys, opened, members, scores, looked_up, settled,
      dedup_ms > 0, accepted, now)
  local excess, drop_lowest = n > 0 and capacity > 0 and redis.call('ZCARD', store) + n - capacity or 0, nil
  if excess > 0 and fields[OVERFLOW] == 'drop_lowest' and n <= capacity then
    --- @include "lib/send/plan_drop_lowest"
    drop_lowest = plan_drop_lowest(excess, new_records, now)
  end
  local reply, is_changed, is_stored = { 0, 'F', '' }, false, false
  if excess <= 0 or drop_lowest then
    if kept then -- a wrong type shows before the first write
      --- @include "lib/settle/settled"
      check_settled_sets(dedup_ms, last_turn, now)
    end
    local wakes = n > 0 and fields[WAITING] and tonumber(fields[WAITING]) > now
    if wakes then
      local first = redis.call('ZRANGEBYSCORE', store, TIMED_MIN, '+inf', 'WITHSCORES', 'LIMIT', 0, 1)
      wakes = not first[2] or earliest < tonumber(first[2])
    end
    write_windows(new_records, new_scores, last)
    if drop_lowest then
      drop_lowest()
    end
    if n > 0 then
      set_fields(merge, entries, n)
      for i = 1, count do
        if each_options[i].expires then
          redis.call('HDEL', slot, 'no_expiry')
          break
        end
      end
    end
    if into then
      redis.call('HINCRBY', slot, 'merged', #into)
    end
    if kept then
      --- @include "lib/settle/settled"
      remember_settled(dedup_ms, last_turn, now, kept)
    end
    if wakes then
      --- @include "lib/wake/wake"
      wake(channel, index)
    end
    reply = { accepted + n, table.concat(letters), into and table.concat(into) or '' }
    is_changed, is_stored = n > 0 or into, n > 0
  end
  return reply, is_changed, is_stored
end
