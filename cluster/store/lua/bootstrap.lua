-- include: base
-- Writes the cluster record unless there is one; of several first nodes exactly one writes it.
--
-- KEYS[1]  {sys}:cluster
-- ARGV     schema version, partitions, prefix
--
-- Returns [created by this call, schema, partitions, prefix, created at ms], numbers as text but
-- the first.
-- oom: refuse (an existing record is only read)
local created = 0
if redis.call('EXISTS', KEYS[1]) == 0 then
  created = 1
  redis.call('HSET', KEYS[1], 'schema', ARGV[1], 'partitions', ARGV[2], 'prefix', ARGV[3], 'created_at', text(now))
end
return { created, unpack(redis.call('HMGET', KEYS[1], 'schema', 'partitions', 'prefix', 'created_at')) }
