-- include: leasing
-- include: barrier
-- Hands out ready tasks to waiters: for each waiter the oldest head among the types it takes. A workflow
-- task goes to another waiter of the same call if that one's process keeps the history of the run.
--
-- KEYS[1]  any key of the first partition (routes the script)
-- ARGV[1]  prefix of the cluster     ARGV[2]  session of the calling node
-- ARGV[3]  generation of the server (put in by whoever sends this)
-- ARGV[4]  msgpack [bases, heads, type sets, waiters, history page size, id of this call, version of
--          the limits the caller knows, latest time of the claim or -1 for any]
--            bases      starts of the keys of the partitions to look into (one on a cluster)
--            heads      heads to look at, of one kind, namespace and queue, one per marker
--            type sets  lists of encoded types
--            waiters    [owner, token, index of a type set or 0 for any type, heads it may take
--                        from, held only, admission ticket or "", registration or "", for how many ms to
--                        note that its poll was sent or 0]; indexes in the request count from 1
--
-- Returns [now, claims, heads left, lease due, refusal, sent before], or the string "FENCED" when the session
-- is buried:
--   claim       [waiter index, base index, task, attempt, delivery, leased at, expires, is repeat, ...]
--               followed for a workflow task by [version, info, state, history length, events],
--               for an activity by [body]
--               A worker that keeps the run's history gets the first events only, if the history was
--               longer than a page before
--   heads left  [base index, heads index, complete, type, ready or "", ...] for each asked; "" says
--               that the type has no work, `complete` that no other type has any
--   lease due   per base the earliest lease expiry, or -1
--   refusal     "" or why less was claimed than there is: "STALE" when the limits have changed (D3),
--               "COUNTED" when leases are counted and no ticket was named, "PAUSED" before the end of a
--               pause, "UNKNOWN" on a server that the partition does not know (E5)
--   sent before  indexes of the waiters whose polls were noted before: they get nothing here, because their
--               tokens may hold tasks in any partition (H1), and nodes hear that these polls were sent again
-- Indexes in the reply count from 0. A "held only" waiter gets the lease that its token holds, or
-- nothing (H1, G1).
-- oom: refuse
PREFIX = ARGV[1]
local session, generation = ARGV[2], ARGV[3]
local request = cmsgpack.unpack(ARGV[4])
local bases, heads_names, type_sets, waiters, page_size, call, version, claim_by = unpack(request)

local KNOWN_HEADS = 64
local SEARCH_LIMIT = 8
-- Events by which a worker recognises a history it keeps.
local ANCHOR = 2

local kind = string.sub(heads_names[1], 1, 1)
local announced = false

for _, base in ipairs(bases) do
  if redis.call('ZSCORE', base .. ':dead', session) then
    return 'FENCED'
  end
end

-- ready[b][h] maps a type to its oldest ready time, or to false when it has no work;
-- complete[b][h] says that types it does not name have none.
local ready, complete = {}, {}
for b, base in ipairs(bases) do
  ready[b], complete[b] = {}, {}
  for h, heads in ipairs(heads_names) do
    local flat = redis.call('ZRANGE', base .. ':h:' .. heads, 0, KNOWN_HEADS - 1, 'WITHSCORES')
    local known = {}
    for i = 1, #flat, 2 do
      known[flat[i]] = tonumber(flat[i + 1])
    end
    ready[b][h], complete[b][h] = known, #flat < 2 * KNOWN_HEADS
  end
end

-- Where there are more heads than were read, only a fresh look tells about the others.
local function refresh(b, h, types)
  local key, known = bases[b] .. ':h:' .. heads_names[h], ready[b][h]
  if types then
    for i, score in ipairs(redis.call('ZMSCORE', key, unpack(types))) do
      known[types[i]] = score and tonumber(score)
    end
  else
    local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
    if first[1] then
      known[first[1]] = tonumber(first[2])
    end
  end
end

local function oldest(types, heads)
  local best, best_b, best_h, best_type
  local function consider(score, b, h, type_part)
    if score and (not best or score < best) then
      best, best_b, best_h, best_type = score, b, h, type_part
    end
  end
  for b = 1, #bases do
    for _, h in ipairs(heads) do
      if not complete[b][h] then
        refresh(b, h, types)
      end
      local known = ready[b][h]
      if types then
        for _, type_part in ipairs(types) do
          consider(known[type_part], b, h, type_part)
        end
      else
        for type_part, score in pairs(known) do
          consider(score, b, h, type_part)
        end
      end
    end
  end
  return best, best_b, best_h, best_type
end

-- The task at the head of a queue if it may be handed out, its entry, and who keeps the history of its
-- run; nil for a dead entry, which goes.
local function take(queue, score)
  local back = P .. ':b:' .. queue
  local first = redis.call('ZRANGE', back, 0, 0, 'WITHSCORES')
  local id, entry
  if first[2] and tonumber(first[2]) <= score then
    id, entry = first[1], 'b'
    redis.call('ZREM', back, id)
  else
    id, entry = take_new(queue)
    if not id then
      return nil
    end
  end
  local key = P .. ':task:' .. id
  local r = redis.call('HMGET', key, 's', 'qi', 'run')
  if r[2] ~= entry or r[1] ~= 'r' then
    if entry ~= 'b' and not (r[1] == 'l' and r[2] == entry) then
      discard_entry(queue, entry)
    end
    return nil
  end
  local run = redis.call('HMGET', P .. ':run:' .. r[3], 'v', 'c', 'sk')
  if not run[1] or run[2] then
    if entry ~= 'b' then
      discard_entry(queue, entry)
    end
    redis.call('DEL', key)
    return nil
  end
  return id, entry, run[3]
end

-- The partition knows under which terms its tasks may be claimed, and the caller may not (D3).
local scope = string.match(heads_names[1], '^[^:]*:[^:]*')
local terms, refusal, barriers = {}, '', {}
local function admitted(b, ticket)
  barriers[b] = barriers[b] or barrier(bases[b], generation)
  if barriers[b] ~= '' then
    refusal = barriers[b]
    return false
  end
  if not terms[b] then
    terms[b] = redis.call('HMGET', bases[b] .. ':adm', scope .. ':v', scope .. ':m')
  end
  if terms[b][1] and tonumber(terms[b][1]) > version then
    refusal = 'STALE'
  elseif terms[b][2] and ticket == '' then
    refusal = 'COUNTED'
  end
  return refusal == ''
end

-- Whether the process keeps more of the run's history than one page (`kept` as its field has it).
local function keeps(kept, registration, leased_at)
  if not kept or page_size < ANCHOR then
    return false
  end
  local keeper, events, until_ms = string.match(kept, '^(%S+) (%d+) (%d+)$')
  return keeper and keeper == registration and tonumber(events) > page_size and tonumber(leased_at) < tonumber(until_ms)
end

local function claimed(waiter, b, id, again)
  local r = redis.call('HMGET', P .. ':task:' .. id, 'n', 'd', 'la', 'x', 'run', 'a')
  local reply = { waiter - 1, b - 1, id, r[1], r[2], r[3], r[4], again }
  if kind == 'w' then
    local run = redis.call('HMGET', P .. ':run:' .. r[5], 'v', 'i', 's', 'sk')
    local history = P .. ':hist:' .. r[5]
    reply[9], reply[10], reply[11] = run[1], run[2], run[3]
    reply[12] = redis.call('LLEN', history)
    local count = keeps(run[4], waiters[waiter][7], r[3]) and ANCHOR or page_size
    reply[13] = redis.call('LRANGE', history, 0, count - 1)
  else
    reply[9] = r[6]
  end
  return reply
end

local function held_by(token, owner)
  for b, base in ipairs(bases) do
    local id = redis.call('HGET', base .. ':held', token)
    if id then
      local r = redis.call('HMGET', base .. ':task:' .. id, 's', 'k', 'o', 'x')
      if r[1] == 'l' and r[2] == token and r[3] == owner and tonumber(r[4]) > now then
        return b, id
      end
    end
  end
end

local claims, served, sent_before = {}, {}, {}

local function hand_out(waiter, b, id, again)
  served[waiter] = true
  claims[#claims + 1] = claimed(waiter, b, id, again)
end

-- The waiter that gets a task which `waiter` was found: one that is still to be served, takes the same types
-- and is of the process that keeps the history; else the waiter itself.
local function preferred(waiter, kept, h)
  local keeper = kept and string.match(kept, '^%S+')
  if not keeper or keeper == waiters[waiter][7] then
    return waiter
  end
  for other = waiter + 1, #waiters do
    local w = waiters[other]
    if w[7] == keeper and not served[other] and w[3] == waiters[waiter][3] then
      for _, heads in ipairs(w[4]) do
        if heads == h then
          return other
        end
      end
    end
  end
  return waiter
end

local function serve(waiter)
  local owner, token, type_set, heads, held_only, ticket = unpack(waiters[waiter])
  local types = type_sets[type_set]
  if held_only == 1 then
    local b, id = held_by(token, owner)
    if id then
      P = bases[b]
      -- From now on only this call may give the task back.
      redis.call('HSET', P .. ':task:' .. id, 'c', call)
      hand_out(waiter, b, id, 1)
    end
    return
  end
  if claim_by >= 0 and now > claim_by then
    return
  end
  for _ = 1, SEARCH_LIMIT do
    local score, best_b, best_h, type_part = oldest(types, heads)
    if not score or not admitted(best_b, ticket) then
      return
    end
    if not announced then
      announced = true
      redis.call('SETRANGE', bases[1] .. ':touch', 0, '')
    end
    P = bases[best_b]
    local queue = heads_names[best_h] .. ':' .. type_part
    local task, entry, kept = take(queue, score)
    local following = next_ready(queue)
    set_head(heads_names[best_h], type_part, following)
    ready[best_b][best_h][type_part] = following or false
    if task then
      local to = preferred(waiter, kept, best_h)
      local w = waiters[to]
      lease_to_poll(task, entry, w[1], w[2], w[6], call, kind == 'w' and w[7])
      hand_out(to, best_b, task, 0)
      if to == waiter then
        return
      end
    end
  end
end

-- Notes that the poll was sent; whether that was noted before. Never asked for on a Redis Cluster, where the
-- note lies in a slot of its own.
local function noted_before(waiter)
  local token, note_ms = waiters[waiter][2], waiters[waiter][8]
  if note_ms == 0 or redis.call('SET', PREFIX .. ':poll:' .. token, '1', 'NX', 'PX', note_ms) then
    return false
  end
  redis.call('PUBLISH', PREFIX .. ':changed', 'poll ' .. token .. ' ' .. session)
  return true
end

-- All before the first is served, which may find a task for another (see `preferred`).
for waiter = 1, #waiters do
  if noted_before(waiter) then
    served[waiter] = true
    sent_before[#sent_before + 1] = waiter - 1
  end
end

for waiter = 1, #waiters do
  if not served[waiter] then
    serve(waiter)
  end
end

local left = {}
for b = 1, #bases do
  for h = 1, #heads_names do
    local row = { b - 1, h - 1, complete[b][h] and 1 or 0 }
    for type_part, score in pairs(ready[b][h]) do
      row[#row + 1] = type_part
      row[#row + 1] = score and text(score) or ''
    end
    left[#left + 1] = row
  end
end

local due = {}
for b, base in ipairs(bases) do
  local first = redis.call('ZRANGE', base .. ':leases', 0, 0, 'WITHSCORES')
  due[b] = first[2] or '-1'
end
write_counts()
return { text(now), claims, left, due, refusal, sent_before }
