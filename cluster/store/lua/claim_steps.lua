-- include: leasing
-- include: barrier
-- Hands out ready steps to the free slots of one node: always the oldest that any of them may take.
--
-- KEYS[1]  any key of the first partition (routes the script)
-- ARGV[1]  prefix of the cluster     ARGV[2]  session of the calling node
-- ARGV[3]  generation of the server (put in by whoever sends this)
-- ARGV[4]  msgpack [bases, heads, type sets, groups, most tasks, permits]
--            bases      [start of its keys, index of heads, ...] for each partition to look into (one on
--                       a cluster), with the heads to look at there
--            heads      heads
--            type sets  lists of encoded types
--            groups     free slots that may take the same: [worker id, the same encoded, free slots,
--                       wants], wants: [index of heads, index of the type set they are limited to or 0,
--                       index of the type set they must not take or 0]; indexes count from 1
--            permits    [`<namespace>:<flow type>`, version of the limits, most tasks or -1, latest time or
--                       -1, admission tickets]; a flow type without one is not handed out (D3)
--
-- A task that leaves a worker out is passed over in its favour, at most 8 of a queue.
--
-- Returns "FENCED" when the session is buried, "PAUSED" or "UNKNOWN" when the partition of the oldest work
-- is in a pause or does not know the server (E5), else [now, claims, heads left, blocked, given up, refusals]:
--   claim       [group, base, task, attempt, delivery, handed out at, info of its run, record of its
--               execution, permit, ticket or ""]
--   heads left  [base, heads, complete, type, ready or "", ...] for each asked; "" says that the type
--               has no work, `complete` that no other type has any
--   blocked     [group, base, heads, type] where only tasks that leave the worker out were found
--   given up    how many searches met too many dead entries
--   refusal     [permit, "STALE" when the limits have changed, "COUNTED" when leases are counted and there
--               was no ticket]
-- Indexes in the reply count from 0.
-- oom: refuse
PREFIX = ARGV[1]
local session, generation = ARGV[2], ARGV[3]
local bases, heads_names, type_lists, groups, most, permits = unpack(cmsgpack.unpack(ARGV[4]))

local KNOWN_HEADS = 64
local SEARCH_LIMIT = 8

for _, row in ipairs(bases) do
  if redis.call('ZSCORE', row[1] .. ':dead', session) then
    return 'FENCED'
  end
end

local type_sets = {}
for i, list in ipairs(type_lists) do
  type_sets[i] = {}
  for _, type_part in ipairs(list) do
    type_sets[i][type_part] = true
  end
end

-- ready[b][h] maps a type to its oldest ready time, or to false when it has no work;
-- complete[b][h] says that types it does not name have none.
local ready, complete = {}, {}
local function look(b, h, number)
  local flat = redis.call('ZRANGE', bases[b][1] .. ':h:' .. heads_names[h], 0, number - 1, 'WITHSCORES')
  for i = 1, #flat, 2 do
    ready[b][h][flat[i]] = tonumber(flat[i + 1])
  end
  complete[b][h] = #flat < 2 * number
end
for b, row in ipairs(bases) do
  ready[b], complete[b] = {}, {}
  for i = 2, #row do
    ready[b][row[i]] = {}
    look(b, row[i], KNOWN_HEADS)
  end
end

-- Where there are more heads than were read, only a fresh look tells about the others.
local function refresh(b, h, only, passed_over)
  if complete[b][h] then
    return
  end
  if only then
    for i, score in ipairs(redis.call('ZMSCORE', bases[b][1] .. ':h:' .. heads_names[h], unpack(only))) do
      ready[b][h][only[i]] = score and tonumber(score)
    end
  else
    look(b, h, KNOWN_HEADS + passed_over)
  end
end

-- Flow types as they are named in permits. A list of steps for one worker has flow types for types.
local permit_of, own_scope, namespaces = {}, {}, {}
for q, permit in ipairs(permits) do
  permit_of[permit[1]] = q
end
for h, heads in ipairs(heads_names) do
  local kind, namespace, name = string.match(heads, '^([^:]*):([^:]*):([^:]*)')
  namespaces[h] = namespace
  own_scope[h] = kind == 's' and namespace .. ':' .. name
end

local refusals, refused = {}, {}
local terms = {}
local function refuse(q, b, reason)
  refused[q] = refused[q] or {}
  if not refused[q][b] then
    refused[q][b] = true
    refusals[#refusals + 1] = { q - 1, reason }
  end
  return nil
end

-- The permit under which a step of that place may be handed out, or nil.
local function permit_for(b, h, type_part)
  local q = permit_of[own_scope[h] or namespaces[h] .. ':' .. type_part]
  if not q or (refused[q] and refused[q][b]) then
    return nil
  end
  local permit = permits[q]
  if permit[3] == 0 or (permit[4] >= 0 and now > permit[4]) then
    return nil
  end
  local scope = b .. ':' .. namespaces[h]
  if not terms[scope] then
    local field = 's:' .. namespaces[h]
    terms[scope] = redis.call('HMGET', bases[b][1] .. ':adm', field .. ':v', field .. ':m')
  end
  local version, counted = terms[scope][1], terms[scope][2]
  if version and tonumber(version) > permit[2] then
    return refuse(q, b, 'STALE')
  elseif counted and #permit[5] == 0 then
    return refuse(q, b, 'COUNTED')
  end
  return q
end

local blocked, blocked_rows = {}, {}
local function place(g, b, h, type_part)
  return g .. ' ' .. b .. ' ' .. h .. ' ' .. type_part
end

-- Where a group may find something: [base, heads, only, never] for all that was looked at.
local sights = {}
for g, group in ipairs(groups) do
  sights[g] = {}
  for _, want in ipairs(group[4]) do
    for b = 1, #bases do
      if ready[b][want[1]] then
        table.insert(sights[g], { b, want[1], want[2], want[3] })
      end
    end
  end
end

local function find_oldest(g)
  local best
  for _, sight in ipairs(sights[g]) do
    local b, h, only, never = sight[1], sight[2], type_sets[sight[3]], type_sets[sight[4]]
    refresh(b, h, type_lists[sight[3]], (never and #type_lists[sight[4]] or 0) + #blocked_rows)
    for type_part, score in pairs(ready[b][h]) do
      if score and (not best or score < best[1]) and (not only or only[type_part])
        and not (never and never[type_part]) and not blocked[place(g, b, h, type_part)]
        and permit_for(b, h, type_part) then
        best = { score, b, h, type_part }
      end
    end
  end
  return best
end

-- What each group would take next. Heads only get younger here, so it stays so until that one changes.
local next_of = {}
local function oldest(g)
  local known = next_of[g]
  if known == nil or (known and (ready[known[2]][known[3]][known[4]] ~= known[1]
    or not permit_for(known[2], known[3], known[4]))) then
    known = find_oldest(g) or false
    next_of[g] = known
  end
  return known
end

-- The task if it may be handed out from this place: its record, info of its run, record of its execution. One
-- that may not loses the place.
local function alive(id, queue, entry)
  local r = step_record(id)
  local here = r.entry == entry and r.heads .. ':' .. r.type_part == queue
  if r.state == 'r' and here then
    local run = redis.call('HMGET', P .. ':run:' .. r.run, 'c', 'i', 'x:' .. string.match(id, '%d+$'))
    if not run[1] then
      return { id = id, entry = entry, record = r, info = run[2], step = run[3] }
    end
    redis.call('DEL', P .. ':task:' .. id)
    redis.call('ZREM', P .. ':timers', 'sticky ' .. id)
  end
  if entry == 'b' then
    redis.call('ZREM', P .. ':b:' .. queue, id)
  elseif not (r.state == 'l' and here) then
    discard_entry(queue, entry)
  end
  return nil
end

-- The oldest returned task of a queue that the worker may have, and its ready time; how many were passed over,
-- how many were dead, and whether there were any at all.
local function search_back(queue, worker)
  local first = redis.call('ZRANGE', P .. ':b:' .. queue, 0, SEARCH_LIMIT - 1, 'WITHSCORES')
  local passed, dead = 0, 0
  for i = 1, #first, 2 do
    local task = alive(first[i], queue, 'b')
    local excluded = task and task.record.excluded
    if not task then
      dead = dead + 1
    elseif excluded and string.find(excluded, ' ' .. worker .. ' ', 1, true) then
      passed = passed + 1
    else
      return task, tonumber(first[i + 1]), passed, dead, true
    end
  end
  return nil, nil, passed, dead, #first > 0
end

-- The first two undelivered entries of a queue.
local function next_new(queue)
  local cursor = cursor_of(queue)
  local entries = redis.call('XRANGE', P .. ':q:' .. queue, cursor and '(' .. cursor or '-', '+', 'COUNT', 2)
  return entries[1], entries[2]
end

-- Task for the worker, and the ready time of what follows it in the queue (nil for nothing); or nil, that
-- time, whether the queue holds only what leaves him out, and whether too many dead entries were in the way.
local function take_for(worker, queue)
  local returned, score, passed, dead, any_back = search_back(queue, worker)
  local fresh, second = next_new(queue)
  if fresh and not (returned and score <= tonumber(fresh[2][4])) then
    for _ = 1, SEARCH_LIMIT do
      local id, entry = take_new(queue)
      if not id then
        break
      end
      local task = alive(id, queue, entry)
      if task and entry == fresh[1] and not any_back then
        return task, second and tonumber(second[2][4]) or nil
      elseif task then
        return task, next_ready(queue)
      end
      dead = dead + 1
    end
  end
  if returned then
    redis.call('ZREM', P .. ':b:' .. queue, returned.id)
    return returned, next_ready(queue)
  end
  return nil, next_ready(queue), passed > 0 and dead == 0, dead >= SEARCH_LIMIT
end

-- The ticket to hand out under, which the permit has less from now on; "" where none are needed.
local function use(q)
  local permit = permits[q]
  if permit[3] > 0 then
    permit[3] = permit[3] - 1
  end
  local ticket = permit[5][#permit[5]] or ''
  permit[5][#permit[5]] = nil
  return ticket
end

local announced, given_up = false, 0
local barriers, closed = {}, ''
local claims = {}

-- Serves the slot whose work is oldest; false when no free slot can do anything more.
local function serve()
  local found, g
  for candidate, group in ipairs(groups) do
    local one = group[3] > 0 and oldest(candidate)
    if one and (not found or one[1] < found[1]) then
      found, g = one, candidate
    end
  end
  if not found then
    return false
  end
  local b, h, type_part = found[2], found[3], found[4]
  local q = permit_for(b, h, type_part)
  next_of[g] = nil
  barriers[b] = barriers[b] or barrier(bases[b][1], generation)
  if barriers[b] ~= '' then
    closed = barriers[b]
    return false
  end
  if not announced then
    announced = true
    redis.call('SETRANGE', bases[1][1] .. ':touch', 0, '')
  end
  P = bases[b][1]
  local queue = heads_names[h] .. ':' .. type_part
  local task, following, only_excluding, too_many_dead = take_for(groups[g][2], queue)
  replace_head(heads_names[h], type_part, following, found[1])
  ready[b][h][type_part] = following or false
  if task then
    local ticket = use(q)
    local r = task.record
    lease_to_stream(task.id, r, task.entry, groups[g][1], session, ticket)
    groups[g][3] = groups[g][3] - 1
    claims[#claims + 1] = { g - 1, b - 1, task.id, r.attempt, r.delivery, text(now), task.info, task.step, q - 1, ticket }
  elseif only_excluding or too_many_dead then
    blocked[place(g, b, h, type_part)] = true
    if following then
      blocked_rows[#blocked_rows + 1] = { g - 1, b - 1, h - 1, type_part }
    end
    given_up = given_up + (too_many_dead and 1 or 0)
  end
  return true
end

for _ = 1, 2 * most do
  if #claims >= most or not serve() then
    break
  end
end

if closed ~= '' and #claims == 0 then
  return closed
end

local left = {}
for b = 1, #bases do
  for h, known in pairs(ready[b]) do
    local row = { b - 1, h - 1, complete[b][h] and 1 or 0 }
    for type_part, score in pairs(known) do
      row[#row + 1] = type_part
      row[#row + 1] = score and text(score) or ''
    end
    left[#left + 1] = row
  end
end
write_counts()
return { text(now), claims, left, blocked_rows, given_up, refusals }
