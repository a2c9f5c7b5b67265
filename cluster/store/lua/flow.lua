-- include: base
-- One consistent view of a run of a flow, as far as a decision needs it.
--
-- KEYS[1]  the run
-- ARGV[1]  start of the partition's keys
-- ARGV[2]  msgpack [fields of open steps or "all", task ids, channels]
--            channels  [key, how many of the first messages, ...]
--
-- Returns nil when there is no such run of a flow, else
--   [now, version, info, state, attributes, [field, value, ...], tasks, messages]
--   tasks     per task id [state, attempt, delivery, owner, handed out at, heartbeat at, checkpoint, session]
--   messages  per channel the messages
-- oom: allow (reads only)
P = ARGV[1]
local fields, task_ids, channels = unpack(cmsgpack.unpack(ARGV[2]))

local run = redis.call('HMGET', KEYS[1], 'v', 'i', 's', 'at', 'fl')
if not run[1] or not run[5] then
  return false
end

local steps = {}
if fields == 'all' then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.sub(all[i], 1, 2) == 'x:' then
      steps[#steps + 1] = all[i]
      steps[#steps + 1] = all[i + 1]
    end
  end
elseif #fields > 0 then
  for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(fields))) do
    if value then
      steps[#steps + 1] = fields[i]
      steps[#steps + 1] = value
    end
  end
end

local tasks = {}
for i, id in ipairs(task_ids) do
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'n', 'd', 'o', 'la', 'hb', 'pg', 'ss')
  for j = 1, 8 do
    r[j] = r[j] or ''
  end
  tasks[i] = r
end

local messages = {}
for i = 1, #channels, 2 do
  messages[#messages + 1] = redis.call('LRANGE', channels[i], 0, channels[i + 1] - 1)
end
return { text(now), run[1], run[2], run[3], run[4] or '', steps, tasks, messages }
