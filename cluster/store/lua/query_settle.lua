-- include: queries
-- Reads the answer to a query; a caller that gives up ends the query for good.
--
-- KEYS[1]  waiting queries of the task queue
-- ARGV[1]  start of the queue's query keys     ARGV[2]  query task id
-- ARGV[3]  "1" when the caller gives up        ARGV[4]  ms to keep a settled record
--
-- Returns {state, answer} with state "c" completed, "f" failed, "p" waiting, "l" leased or "t" timed
-- out (also when the record is gone), and the answer "" unless completed or failed.
-- oom: allow
P = ARGV[1]
local record = P .. ':task:' .. ARGV[2]
local r = redis.call('HMGET', record, 's', 'r', 'm')
if not r[1] then
  return { 't', '' }
end
if r[1] == 'c' or r[1] == 'f' then
  redis.call('PEXPIRE', record, ARGV[4])
  return { r[1], r[2] }
end
if ARGV[3] == '1' then
  leave_line(r[3])
  redis.call('HDEL', record, 'a')
  redis.call('HSET', record, 's', 't')
  redis.call('PEXPIRE', record, ARGV[4])
  return { 't', '' }
end
return { r[1], '' }
