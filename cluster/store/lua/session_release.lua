-- include: queues
-- Tasks of one partition that wait for a worker session go back to their own queue.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  prefix of the cluster
-- ARGV[3]  task queue, `a:<ns>:<queue>`    ARGV[4]  encoded start of the markers they wait behind
-- ARGV[5]  most tasks to move
--
-- Returns how many were moved, the longest waiting of each type first.
-- oom: allow
P, PREFIX = ARGV[1], ARGV[2]
local left = tonumber(ARGV[5])
redis.call('ZREM', P .. ':timers', '')
for _, member in ipairs(redis.call('SMEMBERS', P .. ':ty:' .. ARGV[3])) do
  if string.sub(member, 1, #ARGV[4]) == ARGV[4] and left > 0 then
    local list = P .. ':b:' .. ARGV[3] .. ':' .. member
    for _, id in ipairs(redis.call('ZRANGE', list, 0, left - 1)) do
      unstick(id)
      left = left - 1
    end
  end
end
return tonumber(ARGV[5]) - left
