-- include: looking
-- A workflow's current run, or a named one, with what the workflow knows of it, as one moment shows them.
--
-- KEYS[1]  the workflow
-- ARGV[1]  start of the partition's keys     ARGV[2]  namespace
-- ARGV[3]  run id, or "" for the current one
--
-- Returns nil when the namespace has no such workflow or the partition no such run, else
--   [current run id, number of runs so far, view of the run as load.lua returns it]
-- without open items, task of interest and answer.
-- oom: allow (reads only)
P = ARGV[1]
local workflow = redis.call('HMGET', KEYS[1], 'ns', 'run', 'runs')
if workflow[1] ~= ARGV[2] then
  return false
end
local run_id = ARGV[3] ~= '' and ARGV[3] or workflow[2]
local run = redis.call('HMGET', P .. ':run:' .. run_id, 'v', 'i', 's', 'wt', 'arch')
if not run[1] then
  return false
end
local workflow_task = run[4] and run[4] ~= '' and task(run_id .. '-' .. run[4]) or {}
local view = { text(now), run[1], run[2], run[3], run[5] or '', {}, workflow_task, {}, '' }
return { workflow[2], workflow[3], view }
