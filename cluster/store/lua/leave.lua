-- Ends a node session in good order: it held nothing any more.
--
-- KEYS     {sess}:alive, {sess}:info, {sess}:suspect
-- ARGV[1]  incarnation    ARGV[2]  channel to tell of it
--
-- Returns 1, or 0 when there was no such session.
-- oom: allow
local left = redis.call('ZREM', KEYS[1], ARGV[1])
redis.call('HDEL', KEYS[2], ARGV[1])
redis.call('HDEL', KEYS[3], ARGV[1])
if left == 1 then
  redis.call('PUBLISH', ARGV[2], 'nodes')
end
return left
