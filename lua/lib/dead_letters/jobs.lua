-- The states of a job, and its end.
--- @needs job joblog

-- Change the state of a job, also while Redis is at maxmemory. Return the reply: {1 done | 0 the
-- job has another state | -1 there is no such job, the time}.
local function change_state(from, to, now)
  local state = redis.call('HGET', job, 'state')
  if state ~= from then
    return { state and 0 or -1, now }
  end
  redis.call('HDEL', job, '') -- needs no memory: after it, Redis does not check memory
  redis.call('HSET', job, 'state', to)
  return { 1, now }
end

-- End a job. It has no runner any more, and is kept for `keep` s, with its log.
local function end_job(state, now, keep)
  redis.call('HSET', job, 'state', state, 'ended', now, 'runner', '', 'until', 0)
  redis.call('EXPIRE', job, keep)
  redis.call('EXPIRE', joblog, keep)
end
