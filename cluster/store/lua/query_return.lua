-- include: queries
-- Puts a leased query that reached no worker back into line, at its old place.
--
-- KEYS[1]  waiting queries of the task queue
-- ARGV[1]  start of the queue's query keys     ARGV[2]  query task id
-- ARGV[3]  token and ARGV[4] attempt of the lease
--
-- Returns 1 when it waits again, 0 when the lease is over or its caller has given up.
-- oom: allow
P = ARGV[1]
local record = P .. ':task:' .. ARGV[2]
local r = redis.call('HMGET', record, 's', 'k', 'n', 'm', 'dl', 'keep', 'line')
if r[1] ~= 'l' or r[2] ~= ARGV[3] or r[3] ~= ARGV[4] or tonumber(r[5]) <= now then
  return 0
end
redis.call('DEL', P .. ':held:' .. ARGV[3])
redis.call('HDEL', record, 'o', 'k', 'x')
redis.call('HSET', record, 's', 'p')
wait_in_line(r[4], r[5], r[6])
redis.call('PUBLISH', r[7], '')
return 1
