-- include: queries
-- Hands waiting queries to parked polls: to each the one whose caller gives up first.
--
-- KEYS[1]  waiting queries of the task queue
-- ARGV[1]  start of the queue's query keys     ARGV[2]  lease in ms
-- ARGV[3]  msgpack list of polls [owner, token, encoded markers, encoded types or none for any]
--
-- Returns [poll index from 0, query task id, attempt, lease expiry, body, ...] flattened. A poll whose token
-- holds a leased query gets that one again, under the same attempt.
-- oom: refuse
P = ARGV[1]
local SEARCH_LIMIT = 1000

local function held(token, owner)
  local id = redis.call('GET', P .. ':held:' .. token)
  if not id then
    return nil
  end
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'o', 'k', 'x')
  if r[1] == 'l' and r[2] == owner and r[3] == token and tonumber(r[4]) > now then
    return id
  end
end

local function first_of_types(markers, types)
  local best, best_score
  for _, marker in ipairs(markers) do
    for _, type_part in ipairs(types) do
      local key = P .. ':t:' .. marker .. ':' .. type_part
      local first = redis.call('ZRANGE', key, '(' .. text(now), '+inf', 'BYSCORE', 'LIMIT', 0, 1, 'WITHSCORES')
      if first[2] and (not best or tonumber(first[2]) < best_score) then
        best, best_score = first[1], tonumber(first[2])
      end
    end
  end
  return best
end

local function first_of_markers(markers)
  local known = {}
  for _, marker in ipairs(markers) do
    known[marker] = true
  end
  local line = redis.call('ZRANGE', KEYS[1], '(' .. text(now), '+inf', 'BYSCORE', 'LIMIT', 0, SEARCH_LIMIT)
  for _, member in ipairs(line) do
    if known[string.match(member, ' ([^:]*):')] then
      return member
    end
  end
end

-- The next member of the line that still has a waiting record; members without one leave it.
local function next_in_line(markers, types)
  for _ = 1, PRUNE_LIMIT do
    local member = #types > 0 and first_of_types(markers, types) or #types == 0 and first_of_markers(markers)
    if not member then
      return nil
    end
    local id = string.match(member, '^(%S+)')
    if redis.call('HGET', P .. ':task:' .. id, 's') == 'p' then
      return member, id
    end
    leave_line(member)
  end
end

local replies = {}
for index, poll in ipairs(cmsgpack.unpack(ARGV[3])) do
  local owner, token, markers, types = unpack(poll)
  local id = held(token, owner)
  if not id then
    local member
    member, id = next_in_line(markers, types)
    if id then
      local record = P .. ':task:' .. id
      redis.call('HSET', record, 's', 'l', 'o', owner, 'k', token, 'x', text(now + tonumber(ARGV[2])))
      redis.call('HINCRBY', record, 'n', 1)
      redis.call('SET', P .. ':held:' .. token, id, 'PX', ARGV[2])
      leave_line(member)
    end
  end
  if id then
    local r = redis.call('HMGET', P .. ':task:' .. id, 'n', 'x', 'a')
    for _, value in ipairs({ index - 1, id, r[1], r[2], r[3] }) do
      replies[#replies + 1] = value
    end
  end
end
return replies
