--[[
Batches: messages of any topics that end together. When a batch is closed and all its messages have
ended, one message is sent: its callback. The Python twin is rmq/kernel/batches/scripts.py.

The hash `batch` of a batch is in a slot of the topic that gets the callback. It has a field for
each member: the id of the message in 26 characters. So the end of a member that is reported twice
counts once. The first byte of the value is its state; the rest is a position in `#topics`:

  .           open: the message has not ended
  !           open: the message is a dead letter, and the batch waits for it (`#dead` is `wait`)
  a letter    ended, as in lib/results/results: s h d c e p o; l: the message was not found

The other fields begin with #:

  #state      o open, c closed: no new members, d done: the callback is stored
  #open       number of open members; #all: number of members
  #<letter>   number of members that ended in this way
  #topics     names of the topics of members, with spaces between them
  #target     slot of the callback: `<topic>:<index>`
  #callback   its member, head, and rest of the record (lib/follow_ups/given_follow_ups)
  #counts_at  where in it the counts are: 9 numbers of 10 digits
  #dead       count or wait; #keep: for how long the batch is kept after its end, ms
  #cancelled  1 if the batch was cancelled
  #created, #touched, #ended, #timeout   times, epoch ms; #timeout is 0 without one

The callback becomes a pending entry (lib/follow_ups/pending) in the step that ends the last member.
So it is stored once, also in another slot, and waits while its topic is paused or full.
]]
--- @needs slot batch
--- @include "lib/follow_ups/pending"
local END_LETTERS = 'shdcepol' -- in the order of the counts in the callback

-- Store the callback if the batch is closed and no member is open. `now_us`: the time, epoch us.
local function finish_batch(now, now_us)
  local state, open, target, callback, counts_at, keep, cancelled =
    unpack(redis.call('HMGET', batch, '#state', '#open', '#target', '#callback', '#counts_at',
      '#keep', '#cancelled'))
  if state ~= 'c' or tonumber(open) > 0 then
    return
  end
  local counts = {}
  for i = 1, #END_LETTERS do
    local count = redis.call('HGET', batch, '#' .. string.sub(END_LETTERS, i, i))
    counts[i] = string.format('%010.0f', tonumber(count or 0))
  end
  counts[#counts + 1] = string.format('%010d', cancelled and 1 or 0)
  local text, at = table.concat(counts), tonumber(counts_at)
  local message = string.sub(callback, 1, at) .. text .. string.sub(callback, at + #text + 1)
  local given = { { target = target, messages = { message } } }
  add_pending(given, redis.call('HGET', slot, 'follow_ups'), now, now_us, ':', 0)
  redis.call('HSET', batch, '#state', 'd', '#ended', now)
  redis.call('PEXPIRE', batch, keep)
end
