-- include: base
-- What the store has for the open items of a run. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys     ARGV[2]  number of task ids that follow
-- ARGV[3..]  task ids, then members of the timers
--
-- Returns [now, [state or "", lease expiry or "", ...], [due ms or "", ...]].
-- oom: allow (reads only)
P = ARGV[1]
local count = tonumber(ARGV[2])
local tasks, timers = {}, {}
for i = 3, 2 + count do
  local r = redis.call('HMGET', P .. ':task:' .. ARGV[i], 's', 'x')
  tasks[#tasks + 1] = r[1] or ''
  tasks[#tasks + 1] = r[2] or ''
end
for i = 3 + count, #ARGV do
  local due = redis.call('ZSCORE', P .. ':timers', ARGV[i])
  timers[#timers + 1] = due and text(tonumber(due)) or ''
end
return { text(now), tasks, timers }
