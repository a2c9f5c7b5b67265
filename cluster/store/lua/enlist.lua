-- include: base
-- Names a ticket in every lease of one kind and namespace that has none, and lists all of them.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  kind   ARGV[3]  encoded namespace
-- ARGV[4]  encoded queue and ARGV[5] expiry to go on from ("" and "-inf" at first)
-- ARGV[6]  most leases to look at
--
-- Returns [next queue, next expiry, ticket, encoded queue, ...]; the next queue is false at the end.
-- Whoever sees the leases of a queue in order of expiry misses none: heartbeats only move them up.
-- oom: refuse
P = ARGV[1]
local kind, namespace, limit = ARGV[2], ARGV[3], tonumber(ARGV[6])
redis.call('SETRANGE', P .. ':touch', 0, '')

local queues = {}
for _, member in ipairs(redis.call('SMEMBERS', P .. ':nq:' .. namespace)) do
  local member_kind, queue = string.match(member, '^([^:]*):(.*)$')
  if member_kind == kind and queue >= ARGV[4] then
    queues[#queues + 1] = queue
  end
end
table.sort(queues)

local reply, looked = { false, '-inf' }, 0
for _, queue in ipairs(queues) do
  local leases = P .. ':lq:' .. kind .. ':' .. namespace .. ':' .. queue
  local from = queue == ARGV[4] and ARGV[5] or '-inf'
  local rows = redis.call('ZRANGE', leases, from, '+inf', 'BYSCORE', 'LIMIT', 0, limit, 'WITHSCORES')
  for i = 1, #rows, 2 do
    local key = P .. ':task:' .. rows[i]
    local r = redis.call('HMGET', key, 's', 'tk', 'n', 'd')
    if r[1] == 'l' then
      local ticket = r[2]
      if not ticket then
        ticket = 'a-' .. rows[i] .. '-' .. r[3] .. '.' .. r[4]
        redis.call('HSET', key, 'tk', ticket)
        redis.call('HSET', P .. ':tk', ticket, rows[i])
      end
      reply[#reply + 1] = ticket
      reply[#reply + 1] = queue
    end
  end
  looked = looked + #rows / 2
  if looked >= limit then
    -- Leases of the last millisecond may be left, so it is looked at again; a full batch of one
    -- millisecond is more than a server hands out in that time.
    local last = rows[#rows] or '-inf'
    reply[1], reply[2] = queue, #rows == 2 * limit and rows[2] == last and '(' .. last or last
    return reply
  end
end
return reply
