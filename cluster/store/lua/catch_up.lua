-- Raises the version of a namespace's limits to what partitions know already.
--
-- KEYS[1]  the admission terms of the namespace   ARGV[1]  newest version that a partition knows
--
-- A failover may take the terms back and leave the partitions ahead, which would refuse every claim.
-- Returns the version that holds now.
-- oom: refuse
local version = tonumber(redis.call('HGET', KEYS[1], 'v') or 0)
if version < tonumber(ARGV[1]) then
  version = tonumber(ARGV[1])
  redis.call('HSET', KEYS[1], 'v', version)
end
return version
