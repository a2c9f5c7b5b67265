-- Adds a field to a hash of bounded size.
--
-- KEYS[1]  hash     ARGV[1]  field     ARGV[2]  value     ARGV[3]  most fields, 0 for any number
--
-- Returns {1, ""} when added, {0, value} when the field exists, {0, ""} when the hash is full.
-- oom: refuse
local existing = redis.call('HGET', KEYS[1], ARGV[1])
if existing then
  return { 0, existing }
end
local most = tonumber(ARGV[3])
if most > 0 and redis.call('HLEN', KEYS[1]) >= most then
  return { 0, '' }
end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return { 1, '' }
