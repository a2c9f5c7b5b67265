-- include: leasing
-- include: barrier
-- Begins the pause of a partition on a server it does not know, and takes back what a node runs (E5).
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  prefix of the cluster   ARGV[2]  session of the calling node
-- ARGV[3]  generation of the server (put in by whoever sends this)   ARGV[4]  length of a pause (ms)
-- ARGV[5]  msgpack [start of the partition's keys, live sessions, tasks, last]
--            task  [id, attempt, delivery, owner, token or "", expires at or -1, ticket or "", call,
--                  registration or false, run version or 0]; without a token it runs on a stream
--            last  1 when the node has nothing else in this partition
--
-- The pause ends early once every live session has said all it runs.
-- Returns "FENCED" when the session is buried, else [state, ...] of the tasks: "K" is leased as said,
-- "T" was ready and is leased again, "L" is gone, is somebody else's or has changed.
-- oom: allow
PREFIX = ARGV[1]
local session, generation, pause = ARGV[2], ARGV[3], tonumber(ARGV[4])
local base, live, tasks, last = unpack(cmsgpack.unpack(ARGV[5]))
P = base
redis.call('ZREM', P .. ':timers', '')
if redis.call('ZSCORE', P .. ':dead', session) then
  return 'FENCED'
end

if barrier(base, generation) == 'UNKNOWN' then
  redis.call('DEL', base .. ':gen')
  redis.call('HSET', base .. ':gen', 'g', generation, 'at', text(now + pause))
end

local function run_goes_on(run, version)
  local r = redis.call('HMGET', P .. ':run:' .. run, 'v', 'c')
  return r[1] and not r[2] and (version == 0 or tonumber(r[1]) >= version)
end

local function reassert(id, attempt, delivery, owner, token, expires, ticket, call, registration, version)
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'n', 'd', 'h', 'y', 'qi', 'run', 'ss', 'k')
  if r[2] ~= attempt or r[3] ~= delivery then
    return 'L'
  end
  if r[1] == 'l' then
    local same = token == '' and r[8] == session or token ~= '' and r[9] == token
    return same and 'K' or 'L'
  end
  if (expires >= 0 and expires <= now) or not run_goes_on(r[7], version) then
    return 'L'
  end
  local heads, type_part, entry = r[4], r[5], r[6]
  local queue = heads .. ':' .. type_part
  if entry == 'b' then
    redis.call('ZREM', P .. ':b:' .. queue, id)
  else
    discard_entry(queue, entry)
  end
  if token == '' then
    lease_to_stream(id, step_record(id), 'b', owner, session, ticket)
  else
    lease_to_poll(id, 'b', owner, token, ticket, call, registration)
  end
  set_head(heads, type_part, next_ready(queue))
  return 'T'
end

local states = {}
for i, task in ipairs(tasks) do
  states[i] = reassert(unpack(task))
end

-- Who has spoken stands beside the pause it is about.
if last == 1 and barrier(base, generation) == 'PAUSED' then
  redis.call('HSET', base .. ':gen', 's ' .. session, '1')
  local missing = false
  for _, name in ipairs(live) do
    missing = missing or redis.call('HEXISTS', base .. ':gen', 's ' .. name) == 0
  end
  if not missing then
    redis.call('HSET', base .. ':gen', 'at', text(now))
  end
end
write_counts()
return states
