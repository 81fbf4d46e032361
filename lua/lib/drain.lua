-- drain: opens a script that must work while Redis is at maxmemory. Redis stops asking about memory
-- once a script has made one write that needs none, and removing nobody is such a write.
local function drain(zset)
  redis.call('ZREM', zset, '')
end
