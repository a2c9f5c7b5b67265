-- include: queues
-- Compares the heads of some queues with their streams and returned tasks, and mends what differs.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  prefix of the cluster
-- ARGV[3]  owner and ARGV[4] nonce of the partition lease
-- ARGV[5]  cursor ("0" to begin)           ARGV[6]  about how many queues to look at
--
-- Returns [next cursor ("0" at the end), heads restored, heads removed], or "FENCED" (E4).
-- oom: allow
P, PREFIX = ARGV[1], ARGV[2]
local held = redis.call('HMGET', P .. ':lease', 'owner', 'nonce', 'until')
if held[1] ~= ARGV[3] or held[2] ~= ARGV[4] or tonumber(held[3]) <= now then
  return 'FENCED'
end
redis.call('ZREM', P .. ':timers', '')

local scan = redis.call('SSCAN', P .. ':queues', ARGV[5], 'COUNT', ARGV[6])
local restored, removed = 0, 0
for _, queue in ipairs(scan[2]) do
  local heads, type_part = string.match(queue, '^(.*):([^:]*)$')
  local ready = next_ready(queue)
  local head = tonumber(redis.call('ZSCORE', P .. ':h:' .. heads, type_part) or nil)
  if ready ~= head then
    if ready then
      restored = restored + 1
    else
      removed = removed + 1
    end
    set_head(heads, type_part, ready)
  end
end
return { scan[1], restored, removed }
