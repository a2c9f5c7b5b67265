-- include: base
-- Writes buried sessions into a partition, so that their late claims are refused there (E1).
--
-- Needs no fence: a burial is final and true whoever writes it, and as often as he likes.
--
-- KEYS[1]    dead sessions of the partition
-- ARGV[1]    how long they are remembered (ms)
-- ARGV[2..]  burial time (ms), session, burial time (ms), session, ...; at most 100 pairs
--
-- Returns how many were new.
-- oom: allow
local memory = tonumber(ARGV[1])
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', text(now - memory))
local added = redis.call('ZADD', KEYS[1], 'NX', unpack(ARGV, 2))
redis.call('PEXPIRE', KEYS[1], memory)
return added
