-- include: base
-- Tasks of one kind and queue that are leased to one worker, in one partition. Reads only.
--
-- KEYS[1]  leases of the queue
-- ARGV[1]  start of the partition's keys     ARGV[2]  worker     ARGV[3]  most leases to look at
--
-- Returns the task ids, those whose lease ends first before the others.
-- oom: allow (reads only)
P = ARGV[1]
local owned = {}
for _, id in ipairs(redis.call('ZRANGE', KEYS[1], 0, tonumber(ARGV[3]) - 1)) do
  if redis.call('HGET', P .. ':task:' .. id, 'o') == ARGV[2] then
    owned[#owned + 1] = id
  end
end
return owned
