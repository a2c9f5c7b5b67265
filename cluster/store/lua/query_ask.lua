-- include: queries
-- Puts a query into the line of its task queue, unless the line is full.
--
-- KEYS[1]  waiting queries of the task queue
-- ARGV[1]  start of the queue's query keys     ARGV[2]  query task id
-- ARGV[3]  `<marker>:<type>`, encoded          ARGV[4]  ms after which the caller gives up
-- ARGV[5]  most waiting queries                ARGV[6]  ms to keep the record
-- ARGV[7]  what the worker needs, JSON         ARGV[8]  channel of the asking node
-- ARGV[9]  channel of the queue's parked polls
--
-- Returns {1} when the query stands in line (also when it did before), {0, waiting} when it is full.
-- oom: refuse
P = ARGV[1]
local record = P .. ':task:' .. ARGV[2]
if redis.call('EXISTS', record) == 1 then
  return { 1 }
end
local waiting = redis.call('ZCOUNT', KEYS[1], '(' .. text(now), '+inf')
if waiting >= tonumber(ARGV[5]) then
  return { 0, waiting }
end
local member = ARGV[2] .. ' ' .. ARGV[3]
local deadline = text(now + tonumber(ARGV[4]))
redis.call('HSET', record, 's', 'p', 'n', '0', 'm', member, 'dl', deadline, 'keep', ARGV[6], 'a', ARGV[7],
  'asker', ARGV[8], 'line', ARGV[9])
redis.call('PEXPIRE', record, ARGV[6])
prune()
wait_in_line(member, deadline, ARGV[6])
redis.call('PUBLISH', ARGV[9], '')
return { 1 }
