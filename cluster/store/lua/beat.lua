-- Stamps the heartbeat of a registered worker, and whether its cohort drains.
--
-- KEYS[1]  hash of registrations       KEYS[2]  hash of heartbeats
-- KEYS[3]  hash of vitals              KEYS[4]  workers of its queue by heartbeat
-- KEYS[5]  hash of drain intents       KEYS[6]  set of workers that were told to drain
-- ARGV[1]  worker id     ARGV[2]  its cohort, a field of KEYS[5]     ARGV[3]  its vitals, JSON or ""
--
-- Returns the time in ms, or nil when the worker is not registered.
-- oom: refuse
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then
  return false
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
redis.call('HSET', KEYS[2], ARGV[1], now)
redis.call('ZADD', KEYS[4], now, ARGV[1])
if ARGV[3] ~= '' then
  redis.call('HSET', KEYS[3], ARGV[1], ARGV[3])
end
local intent = redis.call('HGET', KEYS[5], ARGV[2])
if intent and string.sub(intent, 1, 8) == 'draining' then
  redis.call('SADD', KEYS[6], ARGV[1])
else
  redis.call('SREM', KEYS[6], ARGV[1])
end
return now
