-- include: base
-- Streams, returned tasks, heads and task records of the partition `P`.
--
-- A queue is `<heads>:<type>`. Its undelivered entries stand in the stream `P:q:<queue>` behind
-- the cursor (the last delivered id) and in the sorted set `P:b:<queue>`. The head of a type is
-- the oldest ready time among them: `P:h:<heads>` has the member iff there is such an entry (W1),
-- and a wake is published when it appears or gets older work (W2).
--
-- A step that waits for one worker stands in the queue `t:<ns>:<worker>::<flow type>` instead (kind "t",
-- returned tasks only). Its record keeps its own queue in `hh` and `hy` meanwhile, and the
-- timer `sticky <task>` ends the wait. An activity that waits for a worker session stands in its own queue
-- behind another marker, in the same way; so does a step that came back again and again.
local GROUP = 'g'
local CONSUMER = 'h'

-- The last delivered entry of each queue that a script works on, false for none; who delivers says so here.
local cursors = {}
local function cursor_of(queue)
  local place = P .. queue
  if cursors[place] == nil then
    cursors[place] = redis.call('HGET', P .. ':cur', queue)
  end
  return cursors[place]
end

local function next_ready(queue)
  local best
  local back = redis.call('ZRANGE', P .. ':b:' .. queue, 0, 0, 'WITHSCORES')
  if back[2] then
    best = tonumber(back[2])
  end
  local cursor = cursor_of(queue)
  local first = cursor and ('(' .. cursor) or '-'
  local entry = redis.call('XRANGE', P .. ':q:' .. queue, first, '+', 'COUNT', 1)[1]
  if entry then
    local ready = tonumber(entry[2][4])
    if not best or ready < best then
      best = ready
    end
  end
  return best
end

local function head_of(heads, type_part)
  return tonumber(redis.call('ZSCORE', P .. ':h:' .. heads, type_part) or nil)
end

-- Makes `ready` (nil for no work) the head, which was `old` (nil for none).
local function replace_head(heads, type_part, ready, old)
  local key = P .. ':h:' .. heads
  if old == ready then
    return
  end
  if not ready then
    redis.call('ZREM', key, type_part)
    return
  end
  redis.call('ZADD', key, text(ready), type_part)
  if not old or ready < old then
    redis.call('PUBLISH', PREFIX .. ':wake:' .. heads, partition_number() .. ' ' .. type_part .. ' ' .. text(ready))
  end
end

local function set_head(heads, type_part, ready)
  replace_head(heads, type_part, ready, head_of(heads, type_part))
end

local function lower_head(heads, type_part, ready)
  local old = head_of(heads, type_part)
  if not old or ready < old then
    replace_head(heads, type_part, ready, old)
  end
end

-- Sets a timer. A new earliest one is told to whoever keeps the partition, unless it is so far away that he
-- learns of it in good time: all nodes look once a second when the next one is due.
local FAR = 5000
local function arm(timer, due)
  local key = P .. ':timers'
  if due - now > FAR then
    redis.call('ZADD', key, text(due), timer)
    return
  end
  local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
  redis.call('ZADD', key, text(due), timer)
  if not first[2] or due < tonumber(first[2]) then
    redis.call('PUBLISH', PREFIX .. ':due', partition_number() .. ' ' .. text(due))
  end
end

-- XACK without XDEL, or the reverse, would break the backlog formula: always together.
local function discard_entry(queue, entry)
  redis.call('XACK', P .. ':q:' .. queue, GROUP, entry)
  redis.call('XDEL', P .. ':q:' .. queue, entry)
end

-- The task queue that a queue or a set of heads belongs to, with all its types and markers.
local function task_queue(heads)
  return string.match(heads, '^[^:]*:[^:]*:[^:]*')
end

local function register(heads, type_part)
  local queue = heads .. ':' .. type_part
  if redis.call('SADD', P .. ':queues', queue) == 1 then
    local kind, namespace, name, marker = string.match(heads, '^([^:]*):([^:]*):([^:]*):([^:]*)$')
    if kind ~= 't' then
      redis.call('SADD', P .. ':nq:' .. namespace, kind .. ':' .. name)
      redis.call('SADD', P .. ':ty:' .. task_queue(heads), marker .. ':' .. type_part)
    end
  end
end

-- Counts per task queue what was added ("a") and handed out ("d") in each 10 s. Only their sums over all
-- partitions mean something, so a script writes them into one of those it works on, at its end.
local RATE_SLOT, KEEP_RATES = 10000, 80000
local counts, counted_in = {}, nil
local function count(what, heads)
  counted_in = counted_in or P
  local field = what .. ':' .. task_queue(heads)
  counts[field] = (counts[field] or 0) + 1
end

local function write_counts()
  if not counted_in then
    return
  end
  local key = counted_in .. ':rate:' .. text(math.floor(now / RATE_SLOT))
  for field, number in pairs(counts) do
    if redis.call('HINCRBY', key, field, number) == number then
      redis.call('PEXPIRE', key, KEEP_RATES)
    end
  end
end

-- What is read of a task's record when its lease or the task ends: a commit that has checked who holds it
-- knows it already (`known`).
local known_id, known
local function record_of(id)
  local record = known
  if known_id ~= id then
    local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'n', 'd', 'o', 'ss', 'h', 'y', 'at', 'qi', 'k', 'tm', 'tk',
      'hh')
    record = { state = r[1], attempt = r[2], delivery = r[3], owner = r[4], session = r[5], heads = r[6],
      type_part = r[7], ready = r[8], entry = r[9], token = r[10], timer = r[11], ticket = r[12], home = r[13] }
  end
  return record
end

-- Writes the record of a new task: what every one has, then `more` fields. A body is left out when it is "" (a
-- step has none, it is made from the record of its execution), a latest time when there is none.
local function create(id, run, heads, type_part, attempt, lease, timer, after, cap, body, more)
  if cap ~= '0' then
    more[#more + 1], more[#more + 2] = 'tc', cap
  end
  if body ~= '' then
    more[#more + 1], more[#more + 2] = 'a', body
  end
  redis.call('HSET', P .. ':task:' .. id, 'n', attempt, 'd', '0', 'run', run, 'h', heads, 'y', type_part,
    'at', text(now), 'ls', lease, 'tm', timer, 'th', after, unpack(more))
end

local function enqueue(id, run, heads, type_part, attempt, lease, timer, after, cap, body)
  local queue = heads .. ':' .. type_part
  local stream = P .. ':q:' .. queue
  local entry = redis.call('XADD', stream, 'NOMKSTREAM', '*', 't', id, 'r', text(now))
  if not entry then
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0', 'MKSTREAM')
    register(heads, type_part)
    entry = redis.call('XADD', stream, '*', 't', id, 'r', text(now))
  end
  create(id, run, heads, type_part, attempt, lease, timer, after, cap, body, { 's', 'r', 'qi', entry })
  lower_head(heads, type_part, now)
  count('a', heads)
end

-- Heads and admission ticket of each lease that ended, for whoever gives the tickets back; and the task queue
-- of the last of them all.
local ended, ended_in = {}, nil

-- Takes lease, token, ticket and queue entry off a leased task; the caller decides what becomes of it.
local function end_lease(id, queue, entry, token, ticket, session)
  if entry ~= 'b' then
    discard_entry(queue, entry)
  end
  ended_in = task_queue(queue)
  redis.call('ZREM', P .. ':lq:' .. ended_in, id)
  if ticket then
    redis.call('HDEL', P .. ':tk', ticket)
    ended[#ended + 1] = string.match(queue, '^(.*):[^:]*$')
    ended[#ended + 1] = ticket
  end
  -- What was handed out over a stream has no lease that runs out.
  if session then
    redis.call('SREM', P .. ':on:' .. session, id)
  else
    redis.call('ZREM', P .. ':leases', id)
  end
  -- The same poll may have been given another task since.
  if token and redis.call('HGET', P .. ':held', token) == id then
    redis.call('HDEL', P .. ':held', token)
  end
end

-- With `aside` the task waits behind that marker, put before its own, until its timer `sticky` is due.
local function requeue(id, attempt, delivery, excluded, aside)
  local key = P .. ':task:' .. id
  local r = redis.call('HMGET', key, 's', 'h', 'y', 'at', 'qi', 'k', 'tm', 'tr', 'tk', 'ss', 'ex')
  if r[1] ~= 'l' then
    return
  end
  local queue = r[2] .. ':' .. r[3]
  end_lease(id, queue, r[5], r[6], r[9], r[10])
  redis.call('HSET', key, 's', 'r', 'n', attempt, 'd', delivery, 'qi', 'b')
  redis.call('HDEL', key, 'o', 'k', 'c', 'x', 'la', 'hb', 'pg', 'tr', 'tk', 'ss', 'rg')
  if excluded and excluded ~= '' then
    redis.call('HSET', key, 'ex', (r[11] or ' ') .. excluded .. ' ')
  end
  local heads = r[2]
  if aside then
    heads = task_queue(heads) .. ':' .. aside .. string.match(heads, '[^:]*$')
    redis.call('HSET', key, 'h', heads, 'hh', r[2], 'hy', r[3])
  end
  redis.call('ZADD', P .. ':b:' .. heads .. ':' .. r[3], r[4], id)
  register(heads, r[3])
  if r[8] then
    arm(r[7], tonumber(r[8]))
  elseif r[7] ~= '' then
    redis.call('ZREM', P .. ':timers', r[7])
  end
  lower_head(heads, r[3], tonumber(r[4]))
end

-- Tells the node on whose stream a step runs that its result is not wanted any more.
local function tell_holder(id, reason)
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'ss', 'm', 'n', 'd')
  if r[1] == 'l' and r[2] then
    redis.call('PUBLISH', PREFIX .. ':cancel:' .. r[2], id .. (r[3] or 'e') .. '-' .. r[4] .. '.' .. r[5] .. ' ' .. reason)
  end
end

local function drop(id)
  local key = P .. ':task:' .. id
  local r = record_of(id)
  if not r.state then
    return
  end
  local queue = r.heads .. ':' .. r.type_part
  if r.home then
    redis.call('ZREM', P .. ':timers', 'sticky ' .. id)
  end
  if r.state == 'l' then
    end_lease(id, queue, r.entry, r.token, r.ticket, r.session)
  else
    if r.entry == 'b' then
      redis.call('ZREM', P .. ':b:' .. queue, id)
    else
      discard_entry(queue, r.entry)
    end
    local head = redis.call('ZSCORE', P .. ':h:' .. r.heads, r.type_part)
    if head and tonumber(head) >= tonumber(r.ready) then
      set_head(r.heads, r.type_part, next_ready(queue))
    end
  end
  if r.timer ~= '' then
    redis.call('ZREM', P .. ':timers', r.timer)
  end
  redis.call('DEL', key)
end

-- Renews a lease; the task's timer (start-to-close, heartbeat) is re-armed by the caller. One that has
-- run out and was admitted stays so: its ticket may have gone to somebody else (D1).
local function extend(id, lease)
  local key = P .. ':task:' .. id
  local r = redis.call('HMGET', key, 'tk', 'x', 'h')
  if not r[3] or (r[1] and tonumber(r[2]) <= now) then
    return
  end
  local expires = now + tonumber(lease)
  redis.call('HSET', key, 'x', text(expires), 'hb', text(now))
  redis.call('ZADD', P .. ':leases', 'XX', text(expires), id)
  redis.call('ZADD', P .. ':lq:' .. task_queue(r[3]), 'XX', text(expires), id)
end

local function sticky_heads(namespace, worker)
  return 't:' .. namespace .. ':' .. worker .. ':'
end

-- Whether a worker (`<namespace>:<worker>`) has a shared slot on some node that may take such a step. One of
-- whom a node says nothing may take any.
local function may_take(worker, flow_type, type_part)
  local any, step = ' ' .. flow_type .. ':* ', flow_type .. ':' .. type_part .. ' '
  for _, session in ipairs(redis.call('SMEMBERS', P .. ':wk:' .. worker)) do
    local able = redis.call('HGET', P .. ':wt:' .. worker, session)
    if not able or string.find(able, ' ' .. step, 1, true)
      or (string.find(able, any, 1, true) and not string.find(able, ' !' .. step, 1, true)) then
      return true
    end
  end
  return false
end

-- Puts a new step where it finds a worker soonest (R28 to R33): with `worker`, who served its flow last,
-- for up to `wait` ms, if he is connected and can run it, and nothing older than `sync` ms waits for the
-- same type; else in its queue. `behind` says that such work waits in another partition.
local function offer(id, run, heads, type_part, attempt, lease, timer, after, cap, body, worker, behind, sync, wait)
  local namespace, flow_type = string.match(heads, '^[^:]*:([^:]*):([^:]*)')
  local head = worker ~= '' and behind ~= '1' and head_of(heads, type_part)
  if worker == '' or behind == '1' or (head and head <= now - tonumber(sync))
    or not may_take(namespace .. ':' .. worker, flow_type, type_part) then
    enqueue(id, run, heads, type_part, attempt, lease, timer, after, cap, body)
    return
  end
  local list = sticky_heads(namespace, worker)
  create(id, run, list, flow_type, attempt, lease, timer, after, cap, body,
    { 's', 'r', 'qi', 'b', 'hh', heads, 'hy', type_part })
  redis.call('ZADD', P .. ':b:' .. list .. ':' .. flow_type, text(now), id)
  register(list, flow_type)
  arm('sticky ' .. id, now + tonumber(wait))
  lower_head(list, flow_type, now)
  count('a', heads)
end

-- Ends the wait for one worker: the task goes to its own queue, at the place of its ready time.
local function unstick(id, excluded)
  local key = P .. ':task:' .. id
  local r = redis.call('HMGET', key, 's', 'h', 'y', 'hh', 'hy', 'at', 'ex')
  if r[1] ~= 'r' or not r[4] then
    return
  end
  local list = r[2] .. ':' .. r[3]
  redis.call('ZREM', P .. ':b:' .. list, id)
  redis.call('ZREM', P .. ':timers', 'sticky ' .. id)
  set_head(r[2], r[3], next_ready(list))
  redis.call('HSET', key, 'h', r[4], 'y', r[5])
  redis.call('HDEL', key, 'hh', 'hy')
  if excluded and excluded ~= '' then
    redis.call('HSET', key, 'ex', (r[7] or ' ') .. excluded .. ' ')
  end
  redis.call('ZADD', P .. ':b:' .. r[4] .. ':' .. r[5], r[6], id)
  register(r[4], r[5])
  lower_head(r[4], r[5], tonumber(r[6]))
end
