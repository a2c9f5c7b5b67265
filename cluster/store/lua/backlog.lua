-- include: queues
-- How much waits in some queues of a partition, and since when. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  kinds of queues to look at, as one string
-- ARGV[3]  cursor ("0" to begin)           ARGV[4]  about how many queues to look at
--
-- Returns [now, next cursor ("0" at the end), [queue, undelivered, oldest ready time or "", ...]]
-- oom: allow (reads only)
P = ARGV[1]
local scan = redis.call('SSCAN', P .. ':queues', ARGV[3], 'COUNT', ARGV[4])
local rows = {}
for _, queue in ipairs(scan[2]) do
  if string.find(ARGV[2], string.sub(queue, 1, 1), 1, true) then
    local heads, type_part = string.match(queue, '^(.*):([^:]*)$')
    local pending = redis.pcall('XPENDING', P .. ':q:' .. queue, GROUP)
    local leased = pending.err and 0 or pending[1]
    rows[#rows + 1] = queue
    rows[#rows + 1] = redis.call('XLEN', P .. ':q:' .. queue) - leased + redis.call('ZCARD', P .. ':b:' .. queue)
    rows[#rows + 1] = redis.call('ZSCORE', P .. ':h:' .. heads, type_part) or ''
  end
end
return { text(now), scan[1], rows }
