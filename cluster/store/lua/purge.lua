-- include: queues
-- Removes everything of one closed run, and its workflow instance when no other run of it is kept.
--
-- KEYS[1]  the run
-- ARGV[1]  start of the partition's keys     ARGV[2]  run id
-- ARGV[3]  namespace                         ARGV[4]  namespace, encoded
--
-- Returns {"pruned", events, instances}, or {"skipped", reason} with reason run_not_found,
-- run_not_terminal or run_archived. Repeating it is harmless. The tasks of a closed run went with
-- its closing, or are chunked work that needs no run.
-- oom: allow
P = ARGV[1]
local id = ARGV[2]
local runs, closed, failing = P .. ':runs:' .. ARGV[4], P .. ':closed:' .. ARGV[4], P .. ':failing:' .. ARGV[4]

local function unlist()
  redis.call('ZREM', closed, id)
  redis.call('ZREM', runs, id)
  redis.call('ZREM', failing, id)
end

local run = redis.call('HMGET', KEYS[1], 'wid', 'c', 'arch')
if not run[1] then
  unlist()
  return { 'skipped', 'run_not_found' }
end
local instance = P .. ':wf:' .. string.gsub(run[1], '[^%w_.~-]', function(byte)
  return string.format('%%%02X', string.byte(byte))
end)
local flat = redis.call('HGETALL', instance)
local known = {}
for i = 1, #flat, 2 do
  known[flat[i]] = flat[i + 1]
end
if known['ns'] and known['ns'] ~= ARGV[3] then
  return { 'skipped', 'run_not_found' }
end
if not run[2] then
  return { 'skipped', 'run_not_terminal' }
end
if run[3] then
  return { 'skipped', 'run_archived' }
end

local history = P .. ':hist:' .. id
local events = redis.call('LLEN', history)
unlist()
redis.call('UNLINK', history, KEYS[1], P .. ':pend:' .. id, P .. ':cmd:' .. id)

local newest, newest_id = 0, nil
for name, other in pairs(known) do
  local number = tonumber(string.match(name, '^r(%d+)$') or nil)
  if number and other == id then
    redis.call('HDEL', instance, name)
  elseif number and number > newest then
    newest, newest_id = number, other
  end
end
local instances = 0
if known['run'] == id then
  if newest_id then
    redis.call('HSET', instance, 'run', newest_id)
  else
    redis.call('UNLINK', instance)
    instances = 1
  end
end
return { 'pruned', events, instances }
