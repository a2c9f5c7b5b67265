-- Stamps the heartbeat of a registered worker.
--
-- KEYS[1]  hash of registrations       KEYS[2]  hash of heartbeats
-- ARGV[1]  worker id
--
-- Returns the time in ms, or nil when the worker is not registered.
-- oom: refuse
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return false
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[2], ARGV[1], now)
return now
