-- include: base
-- Asks commits to tell of changes of a run for a while.
--
-- KEYS[1]  the run     KEYS[2]  its history
-- ARGV[1]  ms to be told of changes
--
-- Returns the number of events, -1 when the run is closed (it gets no more), or nil when there is none.
-- oom: refuse
local run = redis.call('HMGET', KEYS[1], 'v', 'c')
if not run[1] then
  return false
end
if run[2] then
  return -1
end
redis.call('HSET', KEYS[1], 'watch', text(now + tonumber(ARGV[1])))
return redis.call('LLEN', KEYS[2])
