-- include: queues
-- Removes what nobody needs any more from some queues, and counts what they hold; mends the ends of leases.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  prefix of the cluster
-- ARGV[3]  owner and ARGV[4] nonce of the partition lease
-- ARGV[5]  cursor ("0" to begin)           ARGV[6]  about how many queues to look at
-- ARGV[7]  ms without a new task after which an empty queue goes
-- ARGV[8]  pending entries, and leases that are over, to check per queue
--
-- A pending entry is dead when its task is not leased under it (A6). An empty stream goes with its
-- group, cursor and registration; enqueueing makes them anew, in this slot, so no race exists (A9).
--
-- A lease of a poll that is over stands in `leases` until somebody has ended it. All scripts keep it so; one
-- that is missing there, with a task that would come back never, gets its place again, and what stands there
-- without a lease that is over goes.
--
-- Returns [next cursor ("0" at the end), dead entries removed, queues removed, counts, leases mended] with
-- counts [queue, undelivered, leased or dead, ...]; or "FENCED" (E4).
-- oom: allow
P, PREFIX = ARGV[1], ARGV[2]
local held = redis.call('HMGET', P .. ':lease', 'owner', 'nonce', 'until')
if held[1] ~= ARGV[3] or held[2] ~= ARGV[4] or tonumber(held[3]) <= now then
  return 'FENCED'
end
redis.call('ZREM', P .. ':timers', '')

local function bury_dead_entries(queue, stream)
  local buried = 0
  local pending = redis.pcall('XPENDING', stream, GROUP, '-', '+', ARGV[8])
  if pending.err then
    return 0
  end
  for _, row in ipairs(pending) do
    local entry = redis.call('XRANGE', stream, row[1], row[1])[1]
    local record = entry and redis.call('HMGET', P .. ':task:' .. entry[2][2], 's', 'qi')
    if not record or record[1] ~= 'l' or record[2] ~= row[1] then
      discard_entry(queue, row[1])
      buried = buried + 1
    end
  end
  return buried
end

local function last_added(stream)
  local info = redis.call('XINFO', 'STREAM', stream)
  for i = 1, #info, 2 do
    if info[i] == 'last-generated-id' then
      return tonumber(string.match(info[i + 1], '^%d+'))
    end
  end
end

local function unregister(heads, type_part)
  local kind, namespace, name, marker = string.match(heads, '^([^:]*):([^:]*):([^:]*):([^:]*)$')
  local types = P .. ':ty:' .. task_queue(heads)
  redis.call('SREM', types, marker .. ':' .. type_part)
  if redis.call('EXISTS', types) == 0 then
    redis.call('SREM', P .. ':nq:' .. namespace, kind .. ':' .. name)
  end
end

-- Leases are looked at when they should have been ended so many ms ago.
local LATE = 10000
local function over(leases)
  return redis.call('ZRANGE', leases, '-inf', text(now - LATE), 'BYSCORE', 'LIMIT', 0, ARGV[8])
end

-- When the lease of a poll ends, as its record says; nil for a task that is not leased to a poll.
local function end_of(id)
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'k', 'x')
  return r[1] == 'l' and r[2] and tonumber(r[3])
end

local function mend_times()
  local mended = 0
  for _, id in ipairs(over(P .. ':leases')) do
    local ends = end_of(id)
    if not ends then
      redis.call('ZREM', P .. ':leases', id)
      mended = mended + 1
    elseif ends > now then
      redis.call('ZADD', P .. ':leases', text(ends), id)
      mended = mended + 1
    end
  end
  return mended
end

local looked = {}
local function restore_leases(name)
  local restored = 0
  if not looked[name] and string.find(name, '^[wa]:') then
    looked[name] = true
    for _, id in ipairs(over(P .. ':lq:' .. name)) do
      local ends = end_of(id)
      if ends and not redis.call('ZSCORE', P .. ':leases', id) then
        redis.call('ZADD', P .. ':leases', text(ends), id)
        restored = restored + 1
      end
    end
  end
  return restored
end

local scan = redis.call('SSCAN', P .. ':queues', ARGV[5], 'COUNT', ARGV[6])
local mended = ARGV[5] == '0' and mend_times() or 0
local dead, removed, counts = 0, 0, {}
for _, queue in ipairs(scan[2]) do
  local stream = P .. ':q:' .. queue
  local heads, type_part = string.match(queue, '^(.*):([^:]*)$')
  local exists = redis.call('EXISTS', stream) == 1
  if exists then
    dead = dead + bury_dead_entries(queue, stream)
  end
  mended = mended + restore_leases(task_queue(heads))
  local length = redis.call('XLEN', stream)
  local back = redis.call('ZCARD', P .. ':b:' .. queue)
  local leased_yet = redis.call('EXISTS', P .. ':lq:' .. task_queue(heads)) == 1
  if length == 0 and back == 0 and not leased_yet and (not exists or now - last_added(stream) >= tonumber(ARGV[7])) then
    redis.call('DEL', stream)
    redis.call('HDEL', P .. ':cur', queue)
    redis.call('SREM', P .. ':queues', queue)
    unregister(heads, type_part)
    redis.call('ZREM', P .. ':h:' .. heads, type_part)
    removed = removed + 1
  else
    local pending = redis.pcall('XPENDING', stream, GROUP)
    local leased = pending.err and 0 or pending[1]
    counts[#counts + 1] = queue
    counts[#counts + 1] = length - leased + back
    counts[#counts + 1] = leased
  end
end
return { scan[1], dead, removed, counts, mended }
