-- include: base
-- What is due in a partition: timers, lapsed leases and chunked work. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys     ARGV[2]  most timers and most leases to return
--
-- Returns [now, [timer, due, ...], [task id, ...], work item or nil, next due or "-1"]
-- where next due is the earliest timer or lease that is not due yet.
-- oom: allow (reads only)
P = ARGV[1]
local limit = tonumber(ARGV[2])

local timers = redis.call('ZRANGE', P .. ':timers', '-inf', text(now), 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
local leases = redis.call('ZRANGE', P .. ':leases', '-inf', text(now), 'BYSCORE', 'LIMIT', 0, limit)
local next_due
for _, name in ipairs({ ':timers', ':leases' }) do
  local following = redis.call('ZRANGE', P .. name, '(' .. text(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
  local due = tonumber(following[2] or nil)
  if due and (not next_due or due < next_due) then
    next_due = due
  end
end
return { text(now), timers, leases, redis.call('LINDEX', P .. ':work', 0), next_due and text(next_due) or '-1' }
