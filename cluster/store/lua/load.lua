-- include: looking
-- One consistent view of a run: its records, the record of its open workflow task and of one more task.
--
-- KEYS[1]  the run
-- ARGV[1]  start of the partition's keys     ARGV[2]  run id
-- ARGV[3]  task id of interest, or ""        ARGV[4]  "all" for every open item, else ""
-- ARGV[5]  answer to a client to read, or ""; it may have been given by an earlier run of the workflow
-- ARGV[6..] item fields to read (a:<step>, t:<step>, c:<step>, u:<number>)
--
-- Returns nil when there is no run, else
--   [now, version, info, state, archived, [field, value, ...], workflow task, task of interest, answer]
-- with tasks as task() shows them.
-- oom: allow (reads only)
local run = redis.call('HMGET', KEYS[1], 'v', 'i', 's', 'wt', 'arch')
if not run[1] then
  return false
end
P = ARGV[1]

local items = {}
if ARGV[4] == 'all' then
  local all = redis.call('HGETALL', KEYS[1])
  for i = 1, #all, 2 do
    if string.match(all[i], '^[atcu]:') then
      items[#items + 1] = all[i]
      items[#items + 1] = all[i + 1]
    end
  end
elseif #ARGV > 5 then
  local names = { unpack(ARGV, 6) }
  for i, value in ipairs(redis.call('HMGET', KEYS[1], unpack(names))) do
    if value then
      items[#items + 1] = names[i]
      items[#items + 1] = value
    end
  end
end

local workflow_task = run[4] and run[4] ~= '' and task(ARGV[2] .. '-' .. run[4]) or {}
local other = ARGV[3] ~= '' and task(ARGV[3]) or {}

local EARLIER_RUNS = 8
local function kept(run_id)
  for _ = 0, EARLIER_RUNS do
    local found = redis.call('HGET', P .. ':cmd:' .. run_id, ARGV[5])
    if found then
      return found
    end
    run_id = redis.call('HGET', P .. ':run:' .. run_id, 'cf')
    if not run_id then
      break
    end
  end
  return ''
end

local answer = ARGV[5] ~= '' and kept(ARGV[2]) or ''
return { text(now), run[1], run[2], run[3], run[5] or '', items, workflow_task, other, answer }
