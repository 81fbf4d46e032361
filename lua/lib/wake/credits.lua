--[[
Credits. A consumer that sleeps leaves a credit in the slot: one or more hand-overs of some messages each, on a channel of its
own (lib/wake/hand_over). The field `credits` of the slot has them in the order in which they are served, each as
`<channel> <number> <until, epoch ms> <limit> <lease>`, a call for each hand-over that it is still good for, as
` <session> <sequence number>`, and `;`. A credit that was served and is good for more goes behind the others, and its number
grows by 1. It ends at that time, unless it is renewed. The lease is a number of ms, or s and the number of a shared lease
(lib/leases/shared_leases). The calls are of prepares that found nothing: what is handed over is kept as the answer to the
first of them, so a consumer that did not hear it makes that call again and gets it.

A caller offers a credit as `+<number> <channel>`, with ` <session> <sequence number>` for each call beside its own; with * in
place of + where its subscription has heard such a number. The number is that of the first hand-over. As long as the caller
sleeps it says `=<channel>` each second: that only reads, and renews the credit where it would end soon. A subscription has
its channel to itself, with a random end, so nothing is ever handed over to another one. On a Cluster it is a shard channel,
with `}:wake:s:` in its name and the hash tag of the slot: the master of the slot alone publishes there.
]]
--- @needs slot store
--- @include "lib/check"
--- @include "lib/leases/shared_leases"
--- @include "lib/wake/wake"
--- @include "lib/writes"
local CREDITS_MAX = 64 -- of a slot: more consumers than that are woken by a signal
-- How long a credit lasts, and when it is renewed: a sleeping consumer, which looks at it once a second, writes once in 15 s.
local CREDIT_MS, CREDIT_LEFT_MS = 20000, 5000
local RENEWS = 61 -- =, which begins an offer that renews a credit
local CREDIT_LEAST_MS = 3000 -- under a shared lease that ends sooner no credit is kept
local CALLS_MAX = 16 -- of a credit
local HAND_OVER_MOST, HAND_OVER_BYTES = 100, 16384 -- messages, and bytes of their records, in one hand-over
local HAND_OVER_LARGEST = 33792 -- a single record: a body of 32 KiB or more stands beside its record

-- A credit in front of others: channel, number, until, limit, lease, session and sequence number of its first call, the others.
local FIRST_CREDIT = '^(%S+) (%d+) (%d+) (%d+) (s?%d+) (%S+) (%d+)([^;]*);'

-- Publish on the channel of a subscription; returns how many connections of this server it was sent to. A refusal, of a user
-- without the right or where the slot is served elsewhere, must not stop the script. The channel of a Cluster is a shard channel.
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

-- How many connections of this server listen on the channel of a subscription; 0 where it does not say.
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

-- The (way, number, channel, further calls, how many these are) of an offer. One that renews has no number, and no calls.
--- @inline
local function read_offer(waits)
  local way, number, channel, calls = string.match(waits, '^([+*])(%d+) ([^ ;]+)(.*)$')
  if not way then
    way, channel, calls = string.match(waits, '^(=)([^ ;]+)(.*)$')
  end
  local others, count = string.gsub(calls or '', ' [^ ;]+ %d+', '')
  if not way or others ~= '' or count >= CALLS_MAX then
    fail('ARG', 'waits')
  end
  return way, number, channel, calls, count
end

-- When a credit ends that is kept or renewed now, epoch ms; nil where that would be too soon. `lease_end`: of its shared lease, or
-- nil for a lease of its own. The owner of a shared lease withdraws the credit before it releases the lease.
--- @inline
local function credit_end(lease_end, now)
  local ends = math.min(now + CREDIT_MS, lease_end or math.huge)
  return ends >= now + CREDIT_LEAST_MS and ends or nil
end

-- Where the credit of a channel begins and ends; nil where it has none.
--- @inline
local function find_credit(credits, channel)
  local from = string.find(credits, channel .. ' ', 1, true)
  return from, from and string.find(credits, ';', from, true)
end

-- The deadline, epoch s, of what is handed over now.
--- @inline
local function deadline_of(lease, now)
  return string.byte(lease, 1) == 115 and SHARED + string.sub(lease, 2) or math.ceil((now + lease) / 1000) -- s
end

-- Publish deliveries to the connection that left a credit; returns whether it was sent them. A connection of another server must
-- not hear of what is not moved: a replica repeats what its master publishes, and a Cluster node what others do. So after a
-- failover, when a consumer's connection may still be one of the old master, nothing is published for it.
--- @inline
local function publish_deliveries(channel, deliveries)
  local listeners, heard = nil, 0
  listeners = count_listeners(channel)
  if listeners > 0 then
    heard = publish_own(channel, cmsgpack.pack(deliveries))
  end
  return heard > 0
end

-- The credits after one was served: it goes behind the others, with the calls that are left; without any it is gone.
--- @inline
local function credits_after(others, channel, number, till, limit, lease, calls)
  return calls == '' and others
    or string.format('%s%s %d %s %s %s%s;', others, channel, number + 1, till, limit, lease, calls)
end

-- Write the credits of a slot, one of which is that of a consumer which sleeps.
local function write_credits(credits, now)
  if type(redis.pcall('HSET', slot, 'credits', credits, 'waiting', now + ASLEEP_MS)) ~= 'number' then
    allow_oom(store) -- Redis is at maxmemory, which it seldom is
    redis.call('HSET', slot, 'credits', credits, 'waiting', now + ASLEEP_MS)
  end
end

-- Keep a credit until `ends` if what is published on its channel, the probe, reaches exactly one subscriber: this server serves the
-- subscription, and nobody else listens. Where a probe was heard before, one subscriber is enough: a probe would wake the
-- consumer once more for each message. `limit` messages are shared out among its calls, `call` is the first. Returns for how
-- many hand-overs it is good, 0: it is not kept.
local function keep_credit(waits, ends, limit, lease, call, now)
  local way, number, channel, calls, count_of_calls = read_offer(waits)
  local listeners
  if way == '*' then
    listeners = count_listeners(channel)
  else
    listeners = publish_own(channel, number)
  end
  local kept = listeners == 1
  if not kept then
    return 0
  end
  local credits = redis.call('HMGET', slot, 'credits')[1] or ''
  local from, to = find_credit(credits, channel)
  if from then
    credits = string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1)
  end
  local _, count = string.gsub(credits, ';', '')
  if count >= CREDITS_MAX then
    credits = string.gsub(credits, '[^ ;]+ %d+ (%d+) [^;]+;', function(till)
      if tonumber(till) <= now then
        return ''
      end
    end)
    _, count = string.gsub(credits, ';', '')
    if count >= CREDITS_MAX then
      return 0
    end
  end
  local each = math.max(1, math.floor(limit / (count_of_calls + 1)))
  local entry = string.format('%s %s %.0f %d %s %s%s;', channel, number, ends, each, lease, call, calls)
  write_credits(credits .. entry, now)
  return count_of_calls + 1
end

-- The hand-overs for which a credit is still good.
local function hand_overs_of(entry)
  local _, calls = string.gsub(string.match(entry, '^%S+ %S+ %S+ %S+ %S+(.*);'), ' %S+ %d+', '')
  return calls
end

-- Remove the credit of a channel, also while Redis is at maxmemory; returns how many hand-overs it was still good for.
local function remove_credit(channel)
  local credits = redis.call('HGET', slot, 'credits') or ''
  local from, to = find_credit(credits, channel)
  if not from then
    return 0
  end
  redis.call('HDEL', slot, 'credits')
  if to - from + 1 < #credits then
    redis.call('HSET', slot, 'credits', string.sub(credits, 1, from - 1) .. string.sub(credits, to + 1))
  end
  return hand_overs_of(string.sub(credits, from, to))
end

-- Whether a credit is to be renewed: it ends within CREDIT_LEFT_MS and now may last longer, or the clock was set back.
local function is_to_renew(till, ends, now)
  return till < now + CREDIT_LEFT_MS and till < ends or till > now + CREDIT_MS
end

-- Look at the credit of a channel, which its consumer believes to stand; returns how many hand-overs it is still good for, 0: it
-- is gone. `credits`: the field of the slot. Nothing is written unless it is to be renewed, or `listeners` says that this server
-- does not serve the subscription any more: then it is removed. A credit that is not there was used; another one now would be
-- one more than its consumer knows of.
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
  if is_to_renew(tonumber(till), ends, now) then
    entry = first .. string.format('%.0f', ends) .. rest
    write_credits(string.sub(credits, 1, from - 1) .. entry .. string.sub(credits, to + 1), now)
  end
  return hand_overs_of(entry)
end

-- Whether the credits of a channel, one for each slot, need no look at each: in the first slot it stands and is not to be renewed,
-- and nothing waits or is in flight in any. The credits of a channel were left, and are renewed, together.
local function are_untouched(keys, credits, channel, ends, now)
  local from, to = find_credit(credits, channel)
  local till = from and string.match(string.sub(credits, from, to), '^%S+ %d+ (%d+)')
  if not till or is_to_renew(tonumber(till), ends, now) then
    return false
  end
  local queues = {}
  for i = 1, #keys, 3 do
    queues[#queues + 1], queues[#queues + 2] = keys[i + 1], keys[i + 2]
  end
  return redis.call('EXISTS', unpack(queues)) == 0
end
