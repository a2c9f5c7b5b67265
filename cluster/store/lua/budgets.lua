-- include: base
-- How queues stand against their limits, without asking for anything. Reads only.
--
-- KEYS[1]  the admission terms of the namespace (routes the script)
-- ARGV[1]  start of the namespace's admission keys
-- ARGV[2..] kind, encoded queue, encoded budget group or "", ...
--
-- Returns [now, [leases are counted, counts in gate order, ...]]
-- oom: allow (reads only)
local A = ARGV[1]
local minute = text(math.floor(now / 60000))
local rows = {}
for i = 2, #ARGV, 3 do
  local kind, queue, group = ARGV[i], ARGV[i + 1], ARGV[i + 2]
  local counted = redis.call('HMGET', A .. ':m:' .. kind .. ':' .. minute, 'q:' .. queue, 'n', 'g:' .. group)
  rows[#rows + 1] = redis.call('HEXISTS', A .. ':terms', 'on:' .. kind)
  rows[#rows + 1] = {
    redis.call('ZCARD', A .. ':q:' .. kind .. ':' .. queue),
    redis.call('ZCARD', A .. ':t:' .. kind),
    tonumber(counted[1] or 0), tonumber(counted[2] or 0), group ~= '' and tonumber(counted[3] or 0) or 0,
  }
end
return { text(now), rows }
