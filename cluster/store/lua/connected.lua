-- include: base
-- Remembers where a worker has streams, and what it declined as unsupported while it had any.
--
-- KEYS[1]  sessions of the nodes where the worker has streams, by expiry (ms)
-- KEYS[2]  what the worker declined
-- ARGV[1]  session of the calling node    ARGV[2]  how long a session counts (ms)
-- ARGV[3]  "stay": it has streams here; "leave": no more; "decline": it declined ARGV[4];
--          "forget": ARGV[4] was evicted from memory
-- ARGV[4]  item                           ARGV[5]  most items kept
-- ARGV[6]  channel to tell other nodes    ARGV[7]  message for it
--
-- Returns the items, as they are now. They go with the last session (R44).
-- oom: allow
local keep = tonumber(ARGV[2])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now))
if redis.call('EXISTS', KEYS[1]) == 0 then
  redis.call('DEL', KEYS[2])
end
if ARGV[3] == 'leave' then
  redis.call('ZREM', KEYS[1], ARGV[1])
  if redis.call('EXISTS', KEYS[1]) == 0 and redis.call('DEL', KEYS[2]) == 1 then
    redis.call('PUBLISH', ARGV[6], ARGV[7])
  end
  return {}
end
redis.call('ZADD', KEYS[1], text(now + keep), ARGV[1])
redis.call('PEXPIRE', KEYS[1], keep)
if ARGV[3] == 'decline' and redis.call('SCARD', KEYS[2]) < tonumber(ARGV[5]) then
  redis.call('SADD', KEYS[2], ARGV[4])
  redis.call('PUBLISH', ARGV[6], ARGV[7])
elseif ARGV[3] == 'forget' then
  redis.call('SREM', KEYS[2], ARGV[4])
end
redis.call('PEXPIRE', KEYS[2], keep)
return redis.call('SMEMBERS', KEYS[2])
