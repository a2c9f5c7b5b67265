-- include: base
-- What buried sessions left behind in a partition. Removes only what says nothing any more.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  most tasks and most workers to return
-- ARGV[3]  a session to look at whether it is buried or not, or ""
--
-- Returns [session, tasks, workers] for the first buried session that left anything, or nil:
--   tasks    [task, attempt, delivery, worker, "w" for wait_for or "", ...] handed out by it and not ended since
--   workers  `<namespace>:<worker>` that had streams there
-- oom: allow
P = ARGV[1]
local limit = tonumber(ARGV[2])
redis.call('ZREM', P .. ':timers', '')

local function left_by(session)
  local on = P .. ':on:' .. session
  local tasks = {}
  for _, id in ipairs(redis.call('SRANDMEMBER', on, limit)) do
    local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'ss', 'n', 'd', 'o', 'm')
    if r[1] == 'l' and r[2] == session then
      for _, part in ipairs({ id, r[3], r[4], r[5], r[6] or '' }) do
        tasks[#tasks + 1] = part
      end
    else
      redis.call('SREM', on, id)
    end
  end
  local workers = redis.call('SRANDMEMBER', P .. ':ses:' .. session, limit)
  if #tasks > 0 or #workers > 0 or redis.call('EXISTS', on) == 1 then
    return { session, tasks, workers }
  end
end

if ARGV[3] ~= '' then
  return left_by(ARGV[3])
end
for _, session in ipairs(redis.call('ZRANGE', P .. ':dead', 0, -1)) do
  local found = left_by(session)
  if found then
    return found
  end
end
return nil
