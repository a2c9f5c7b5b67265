-- include: base
-- What some task queues hold in one partition. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  encoded namespace
-- ARGV[3]  msgpack list of encoded task queues
-- ARGV[4]  kinds, as one string            ARGV[5]  leases wanted per kind and queue
-- ARGV[6]  ms after which a ready task is overdue   ARGV[7]  "all": count the namespace's leases, too
--
-- Returns [now, live leases of the namespace per kind, rows], a row being
--   [kind, queue index from 0, ready, oldest ready or "", its task, its workflow, leased, expired,
--    oldest expiry or "", overdue, added, handed out,
--    leases: [task, owner, attempt, delivery, expiry, workflow, ...]]
-- Overdue tasks are counted up to 100 per type and marker; "added" and "handed out" are of the slots of
-- 10 s that began in the last minute.
-- oom: allow (reads only)
P = ARGV[1]
local namespace, queues, overdue_after = ARGV[2], cmsgpack.unpack(ARGV[3]), tonumber(ARGV[6])
local MOST_OVERDUE = 100
local SLOT, WINDOW = 10000, 60000

local function first_of(queue)
  local ready, id
  local back = redis.call('ZRANGE', P .. ':b:' .. queue, 0, 0, 'WITHSCORES')
  if back[2] then
    ready, id = tonumber(back[2]), back[1]
  end
  local cursor = redis.call('HGET', P .. ':cur', queue)
  local entry = redis.call('XRANGE', P .. ':q:' .. queue, cursor and ('(' .. cursor) or '-', '+', 'COUNT', 1)[1]
  if entry and (not ready or tonumber(entry[2][4]) < ready) then
    ready, id = tonumber(entry[2][4]), entry[2][2]
  end
  return ready, id, cursor
end

local function undelivered(queue)
  local pending = redis.pcall('XPENDING', P .. ':q:' .. queue, 'g')
  local leased = pending.err and 0 or pending[1]
  return redis.call('XLEN', P .. ':q:' .. queue) - leased + redis.call('ZCARD', P .. ':b:' .. queue)
end

local function overdue(queue, cursor)
  local latest = now - overdue_after
  local entries = redis.call('XRANGE', P .. ':q:' .. queue, cursor and ('(' .. cursor) or '-', text(latest),
    'COUNT', MOST_OVERDUE)
  local back = redis.call('ZCOUNT', P .. ':b:' .. queue, '-inf', text(latest))
  return math.min(#entries + back, MOST_OVERDUE)
end

local function rates(task_queue)
  local added, handed_out = 0, 0
  local slot = math.floor(now / SLOT)
  while slot * SLOT > now - WINDOW do
    local counts = redis.call('HMGET', P .. ':rate:' .. text(slot), 'a:' .. task_queue, 'd:' .. task_queue)
    added, handed_out = added + tonumber(counts[1] or 0), handed_out + tonumber(counts[2] or 0)
    slot = slot - 1
  end
  return added, handed_out
end

local function workflow_of(run)
  return run and redis.call('HGET', P .. ':run:' .. run, 'wid') or ''
end

local function leases(key)
  local rows = {}
  if tonumber(ARGV[5]) > 0 then
    local first = redis.call('ZRANGE', key, 0, tonumber(ARGV[5]) - 1, 'WITHSCORES')
    for i = 1, #first, 2 do
      local r = redis.call('HMGET', P .. ':task:' .. first[i], 'o', 'n', 'd', 'run')
      if r[1] then
        local expires = text(tonumber(first[i + 1]))
        for _, value in ipairs({ first[i], r[1], r[2], r[3], expires, workflow_of(r[4]) }) do
          rows[#rows + 1] = value
        end
      end
    end
  end
  return rows
end

local rows = {}
for index, name in ipairs(queues) do
  for kind in string.gmatch(ARGV[4], '.') do
    local task_queue = kind .. ':' .. namespace .. ':' .. name
    local ready, late, oldest, oldest_id = 0, 0, nil, nil
    for _, member in ipairs(redis.call('SMEMBERS', P .. ':ty:' .. task_queue)) do
      local queue = task_queue .. ':' .. member
      local ready_ms, id, cursor = first_of(queue)
      if ready_ms then
        ready, late = ready + undelivered(queue), late + overdue(queue, cursor)
        if not oldest or ready_ms < oldest then
          oldest, oldest_id = ready_ms, id
        end
      end
    end
    local key = P .. ':lq:' .. task_queue
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    local added, handed_out = rates(task_queue)
    rows[#rows + 1] = {
      kind, index - 1, ready, oldest and text(oldest) or '', oldest_id or '',
      workflow_of(oldest_id and redis.call('HGET', P .. ':task:' .. oldest_id, 'run')),
      redis.call('ZCARD', key), redis.call('ZCOUNT', key, '-inf', text(now)), first[2] or '', late, added,
      handed_out, leases(key),
    }
  end
end

local live = {}
for kind in string.gmatch(ARGV[4], '.') do
  live[#live + 1] = 0
end
if ARGV[7] == 'all' then
  for _, member in ipairs(redis.call('SMEMBERS', P .. ':nq:' .. namespace)) do
    local kind, name = string.match(member, '^(.):(.*)$')
    local place = string.find(ARGV[4], kind, 1, true)
    if place then
      local key = P .. ':lq:' .. kind .. ':' .. namespace .. ':' .. name
      live[place] = live[place] + redis.call('ZCOUNT', key, '(' .. text(now), '+inf')
    end
  end
end
return { text(now), live, rows }
