-- include: base
-- One consistent view of a schedule: its records, its latest run, and a slice of its history.
--
-- KEYS[1]  the schedule                      KEYS[2]  its history
-- ARGV[1]  start of the partition's keys
-- ARGV[2]  sequence after which events are wanted     ARGV[3]  most events to return
--
-- Returns nil when there is no schedule, else
--   [version, definition, state, current run of its latest workflow or "", closed status or "", [event, ...]]
-- oom: allow (reads only)
P = ARGV[1]
local r = redis.call('HMGET', KEYS[1], 'v', 'd', 's', 'last', 'n')
if not r[1] then
  return false
end

local run, closed = '', ''
if r[4] and r[4] ~= '' then
  run = redis.call('HGET', P .. ':wf:' .. r[4], 'run') or ''
  if run ~= '' then
    closed = redis.call('HGET', P .. ':run:' .. run, 'c') or ''
  end
end

local events = {}
local limit = tonumber(ARGV[3])
if limit > 0 then
  -- The list ends with event number n; older ones may have been trimmed.
  local first = redis.call('LLEN', KEYS[2]) - tonumber(r[5]) + tonumber(ARGV[2])
  first = math.max(0, first)
  events = redis.call('LRANGE', KEYS[2], first, first + limit - 1)
end
return { r[1], r[2], r[3], run, closed, events }
