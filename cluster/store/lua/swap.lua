-- Compare-and-set of one hash field, announced to the caches of all nodes.
--
-- KEYS[1]  hash of records             KEYS[2]  (optional) hash of heartbeats, stamped or cleared too
-- KEYS[3]  hash, KEYS[4] sorted set, KEYS[5] set (optional) whose entry belonged to the old value
-- ARGV[1]  field                       ARGV[2]  expected value, "" for absent
-- ARGV[3]  new value, "" to remove     ARGV[4]  channel        ARGV[5]  message
--
-- Returns {1, now ms} when the field now has the new value, whoever set it, so a repeated call is
-- harmless; {0, current value} when it held neither the expected nor the new one.
-- A removal starts with HDEL and therefore also runs when memory is full.
-- oom: refuse
local current = redis.call('HGET', KEYS[1], ARGV[1]) or ''
if current ~= ARGV[2] and current ~= ARGV[3] then
  return {0, current}
end
local time = redis.call('TIME')
local now = string.format('%.0f', time[1] * 1000 + math.floor(time[2] / 1000))
if ARGV[3] == '' then
  redis.call('HDEL', KEYS[1], ARGV[1])
  if KEYS[2] then
    redis.call('HDEL', KEYS[2], ARGV[1])
  end
else
  redis.call('HSET', KEYS[1], ARGV[1], ARGV[3])
  if KEYS[2] then
    redis.call('HSET', KEYS[2], ARGV[1], now)
  end
end
if KEYS[3] then
  redis.call('HDEL', KEYS[3], ARGV[1])
  redis.call('ZREM', KEYS[4], ARGV[1])
  redis.call('SREM', KEYS[5], ARGV[1])
end
redis.call('PUBLISH', ARGV[4], ARGV[5])
return {1, now}
