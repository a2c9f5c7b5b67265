-- include: base
-- Adds one sample to a line that forgets its oldest ones, and itself when nobody adds any more.
--
-- KEYS[1]  the line
-- ARGV     sample, most samples kept, seconds the line is kept after its last sample
--
-- Returns 1.
-- oom: refuse
redis.call('LPUSH', KEYS[1], ARGV[1])
redis.call('LTRIM', KEYS[1], 0, tonumber(ARGV[2]) - 1)
redis.call('EXPIRE', KEYS[1], tonumber(ARGV[3]))
return 1
