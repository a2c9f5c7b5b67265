-- include: queries
-- Takes a worker's answer to a query and tells the node that asked.
--
-- KEYS[1]  waiting queries of the task queue
-- ARGV[1]  start of the queue's query keys     ARGV[2]  query task id
-- ARGV[3]  owner and ARGV[4] attempt as the worker says
-- ARGV[5]  new state: "c" completed or "f" failed     ARGV[6]  answer, JSON
--
-- Returns {1}; or {0, reason, detail} where the detail of lease_owner_mismatch is the owner, of
-- query_task_attempt_mismatch the attempt and of lease_expired the expiry in ms.
-- oom: refuse
P = ARGV[1]
local record = P .. ':task:' .. ARGV[2]
local r = redis.call('HMGET', record, 's', 'o', 'n', 'x', 'k', 'asker')
if not r[1] then
  return { 0, 'query_task_not_found', '' }
end
if r[1] ~= 'l' then
  return { 0, 'query_task_not_leased', '' }
end
if r[2] ~= ARGV[3] then
  return { 0, 'lease_owner_mismatch', r[2] }
end
if r[3] ~= ARGV[4] then
  return { 0, 'query_task_attempt_mismatch', r[3] }
end
if tonumber(r[4]) <= now then
  return { 0, 'lease_expired', r[4] }
end
redis.call('HSET', record, 's', ARGV[5], 'r', ARGV[6])
redis.call('HDEL', record, 'a')
redis.call('DEL', P .. ':held:' .. r[5])
redis.call('PUBLISH', r[6], ARGV[2])
return { 1 }
