--[[
Credits: hand-overs that sleeping consumers are ready for.

A consumer that sleeps leaves a credit in the slot: one or more hand-overs (lib/wake/hand_over) of
some messages each, on a channel of its own. The field `credits` of the slot has all credits in the
order in which they are served, each as

  <channel> <number> <until, epoch ms> <limit> <lease> <session> <sequence number> ...;

- `number` is that of the next hand-over. A credit that was served and is good for more goes behind
  the others, and its number grows by 1.
- `until` is when the credit ends, unless it is renewed.
- `lease` is a number of ms, or s and the number of a shared lease (lib/leases/shared_leases).
- There is a call, ` <session> <sequence number>`, for each hand-over that is left. The calls are
  prepares that found nothing. What is handed over is kept as the answer to the first of them: a
  consumer that did not hear it repeats that call and gets it.

A caller offers a credit as `+<number> <channel>`, with ` <session> <sequence number>` for each call
besides its own; with * instead of + if its subscription has heard such a number. While the caller
sleeps, it says `=<channel>` each second: that reads, and renews a credit that would end soon.

A subscription has its channel to itself, with a random end, so nothing is handed over to another
subscription. On a Cluster it is a shard channel, with `}:wake:s:` in its name and the hash tag of
the slot: only the master of the slot publishes there.
]]
--- @needs slot store
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
--- @include "lib/wake/wake"
--- @include "lib/writes"
local CREDITS_MAX = 64 -- of a slot; more consumers are woken by a signal
-- How long a credit lasts, and when it is renewed: a sleeping consumer, which looks at its credit
-- once a second, writes once in 15 s.
local CREDIT_MS, CREDIT_LEFT_MS = 20000, 5000
local RENEWS = 61 -- =, which begins an offer that renews a credit
local CREDIT_LEAST_MS = 3000 -- no credit is kept under a shared lease that ends sooner
local CALLS_MAX = 16 -- of a credit
-- Messages, and bytes of their records, in one hand-over.
local HAND_OVER_MOST, HAND_OVER_BYTES = 100, 16384
local HAND_OVER_LARGEST = 33792 -- a single record; bodies of 32 KiB or more are not in the record
local UNDER_SHARED = 115 -- s, which begins the lease of a credit under a shared lease

-- A credit in front of others: channel, number, until, limit, lease, session and sequence number of
-- its first call, the other calls.
local FIRST_CREDIT = '^(%S+) (%d+) (%d+) (%d+) (s?%d+) (%S+) (%d+)([^;]*);'

-- Publish on the channel of a subscription; return to how many connections of this server it was
-- sent. A refusal does not stop the script: the user may lack the right, or another node serve the
-- slot.
--- @inline
local function publish_own(channel, text)
  local sent
  if string.find(channel, '}:wake:s:', 1, true) then
    sent = redis.pcall('SPUBLISH', channel, text)
  else
    sent = redis.pcall('PUBLISH', channel, text)
  end
  return type(sent) == 'number' and sent or 0
end

-- Return how many connections of this server listen on the channel of a subscription; 0 if the
-- server does not say.
--- @inline
local function count_listeners(channel)
  local count
  if string.find(channel, '}:wake:s:', 1, true) then
    count = redis.pcall('PUBSUB', 'SHARDNUMSUB', channel)
  else
    count = redis.pcall('PUBSUB', 'NUMSUB', channel)
  end
  return count[2] or 0
end

-- Return the way of an offer (its first character), number, channel, and further calls as text; nil
-- if it is no offer. An offer that renews has no number and no calls.
--- @inline
local function parse_offer(waits)
  local way, number, channel, calls = string.match(waits, '^([+*])(%d+) ([^ ;]+)(.*)$')
  if not way then
    way, channel, calls = string.match(waits, '^(=)([^ ;]+)(.*)$')
  end
  local others, count = string.gsub(calls or '', ' [^ ;]+ %d+', '')
  if others ~= '' or count >= CALLS_MAX then
    way = nil
  end
  return way, number, channel, calls
end

-- Return the channel of an offer, which is checked.
--- @inline
local function offered_channel(waits)
  local way, _, channel = parse_offer(waits)
  if not way then
    fail('ARG', 'waits')
  end
  return channel
end

-- Return when a credit ends that is kept or renewed now, epoch ms; nil if that would be too soon.
-- `lease_end`: of its shared lease, or nil for a lease of its own. The owner of a shared lease
-- withdraws the credit before it releases the lease.
--- @inline
local function credit_end(lease_end, now)
  local ends = math.min(now + CREDIT_MS, lease_end or math.huge)
  return ends >= now + CREDIT_LEAST_MS and ends or nil
end

-- Return where the credit of a channel begins and ends in a text; nil if it has none.
--- @inline
local function find_credit(credits, channel)
  local from = string.find(credits, channel .. ' ', 1, true)
  return from, from and string.find(credits, ';', from, true)
end

-- Return the deadline, epoch s, of a delivery that is handed over now.
--- @inline
local function deadline_of(lease, now)
  if string.byte(lease, 1) == UNDER_SHARED then
    return SHARED + string.sub(lease, 2)
  end
  return math.ceil((now + lease) / 1000)
end

-- Publish deliveries to the connection that left a credit; return whether it was sent them. Nothing
-- is published unless this server counts the listener: a replica repeats what its master publishes,
-- and a Cluster node what others publish. After a failover, the consumer's connection may be one of
-- the old master, and must not hear of deliveries that this server did not make.
--- @inline
local function publish_deliveries(channel, deliveries)
  local listeners, heard = nil, 0
  listeners = count_listeners(channel)
  if listeners > 0 then
    heard = publish_own(channel, cmsgpack.pack(deliveries))
  end
  return heard > 0
end

-- Return the first of some credits, with the `others` behind it; nil if there is none.
local function first_credit(credits)
  local _, last, channel, number, till, limit, lease, session, call_number, calls =
    string.find(credits, FIRST_CREDIT)
  return last and {
    channel = channel, number = number, till = tonumber(till), limit = limit, lease = lease,
    session = session, call_number = call_number, calls = calls,
    others = string.sub(credits, last + 1),
  }
end

-- Return the credits of a slot after its first one was served: it goes behind the others with the
-- calls that are left, and is gone if none is left.
local function credits_after(credit)
  if credit.calls == '' then
    return credit.others
  end
  return string.format('%s%s %d %.0f %s %s%s;', credit.others, credit.channel, credit.number + 1,
    credit.till, credit.limit, credit.lease, credit.calls)
end

-- Write the credits of a slot, and that a consumer sleeps.
local function write_credits(credits, now)
  local asleep_until = now + ASLEEP_MS
  local written = redis.pcall('HSET', slot, 'credits', credits, 'waiting', asleep_until)
  if type(written) ~= 'number' then -- Redis is at maxmemory, which is rare
    allow_oom(store)
    redis.call('HSET', slot, 'credits', credits, 'waiting', asleep_until)
  end
end

-- Return credits, without ended ones if there are CREDITS_MAX; and whether there is room for one
-- more.
local function make_room(credits, now)
  local _, count = string.gsub(credits, ';', '')
  if count < CREDITS_MAX then
    return credits, true
  end
  credits = string.gsub(credits, '[^ ;]+ %d+ (%d+) [^;]+;', function(till)
    if tonumber(till) <= now then
      return ''
    end
  end)
  _, count = string.gsub(credits, ';', '')
  return credits, count < CREDITS_MAX
end

-- Return how many calls a text names.
local function count_calls(calls)
  local _, count = string.gsub(calls, ' %S+ %d+', '')
  return count
end

-- Keep a credit until `ends` if its channel has exactly one subscriber: then this server serves the
-- subscription, and no other client listens. To find out, a number is published, the probe. If the
-- subscription has heard a probe, the subscribers are counted instead: a probe would wake the
-- consumer once more for each message. `limit` messages are divided among the calls; `call` is the
-- first. Return for how many hand-overs the credit is good, 0: it is not kept. `waits`: an offer
-- that was checked.
local function keep_credit(waits, ends, limit, lease, call, now)
  local way, number, channel, calls = parse_offer(waits)
  local listeners
  if way == '*' then
    listeners = count_listeners(channel)
  else
    listeners = publish_own(channel, number)
  end
  if listeners ~= 1 then
    return 0
  end
  local credits = redis.call('HMGET', slot, 'credits')[1] or ''
  local from, to = find_credit(credits, channel)
  if from then
    credits = string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1)
  end
  local is_room
  credits, is_room = make_room(credits, now)
  if not is_room then
    return 0
  end
  local good = 1 + count_calls(calls)
  local each = math.max(1, math.floor(limit / good))
  local entry = string.format('%s %s %.0f %d %s %s%s;',
    channel, number, ends, each, lease, call, calls)
  write_credits(credits .. entry, now)
  return good
end

-- Return the hand-overs for which a credit is still good.
local function hand_overs_of(entry)
  return count_calls(string.match(entry, '^%S+ %S+ %S+ %S+ %S+(.*);'))
end

-- Remove the credit of a channel, also while Redis is at maxmemory; return the hand-overs for which
-- it was still good.
local function remove_credit(channel)
  local credits = redis.call('HGET', slot, 'credits') or ''
  local from, to = find_credit(credits, channel)
  if not from then
    return 0
  end
  redis.call('HDEL', slot, 'credits')
  if to - from + 1 < #credits then
    local others = string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1)
    redis.call('HSET', slot, 'credits', others)
  end
  return hand_overs_of(string.sub(credits, from, to))
end

-- Return whether to renew a credit: it ends within CREDIT_LEFT_MS and may now last longer, or the
-- clock was set back.
--- @inline
local function is_to_renew(till, ends, now)
  return till < now + CREDIT_LEFT_MS and till < ends or till > now + CREDIT_MS
end

-- Look at the credit that a consumer believes to have; return the hand-overs for which it is still
-- good, 0: it is gone. `credits`: the field of the slot. Only a credit that is to be renewed is
-- written. If `listeners` says that this server no longer serves the subscription, the credit is
-- removed. A missing credit was used; a new one would be one more than its consumer knows of.
local function renew_credit(credits, channel, listeners, ends, now)
  local from, to = find_credit(credits, channel)
  if not from then
    return 0
  end
  if listeners ~= 1 then
    remove_credit(channel)
    return 0
  end
  local entry = string.sub(credits, from, to)
  local first, till, rest = string.match(entry, '^(%S+ %d+ )(%d+)(.*)$')
  local is_due = is_to_renew(tonumber(till), ends, now)
  if is_due then
    entry = first .. string.format('%.0f', ends) .. rest
    write_credits(string.sub(credits, 1, from - 1) .. entry .. string.sub(credits, to + 1), now)
  end
  return hand_overs_of(entry)
end

-- Return whether the credits of a channel, one for each slot, need no look at each slot: the credit
-- of the first slot is there and not to be renewed, and no slot has a message that waits or is in
-- flight. The credits of a channel are left and renewed together.
local function are_untouched(keys, credits, channel, ends, now)
  local from, to = find_credit(credits, channel)
  local till = from and string.match(string.sub(credits, from, to), '^%S+ %d+ (%d+)')
  if not till then
    return false
  end
  local is_due = is_to_renew(tonumber(till), ends, now)
  if is_due then
    return false
  end
  local queues = {}
  for i = 1, #keys, 3 do
    queues[#queues + 1], queues[#queues + 2] = keys[i + 1], keys[i + 2]
  end
  return redis.call('EXISTS', unpack(queues)) == 0
end
