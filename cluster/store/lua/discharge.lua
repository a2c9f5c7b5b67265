-- include: base
-- Gives tickets back, and tells as many waiting nodes as there is room again.
--
-- KEYS[1]  the admission terms of the namespace (routes the script)
-- ARGV[1]  start of the namespace's admission keys   ARGV[2]  prefix of the cluster
-- ARGV[3]  encoded namespace
-- ARGV[4]  msgpack list of [kind, ticket, refund, record]
--            refund  1 when no task was handed out: its minute gets the dispatch back
--            record  only drop the ticket if it still is this one ("" for any)
--          or, for dispatches counted without a ticket, [kind, "", minute, queue, "n" or "-", group, number]
--
-- Returns how many tickets there were. Repeating it is harmless but for dispatches without a ticket.
-- oom: allow
PREFIX = ARGV[2]
local A = ARGV[1]
local REMEMBER_REFUSALS = 10000

redis.call('ZREM', A .. ':t:w', '')

local room = {}
local function make_room(kind, place, number)
  local key = kind .. ':' .. place
  room[key] = (room[key] or 0) + number
end

local function refund(kind, minute, queue, by_namespace, group, number)
  local bucket = A .. ':m:' .. kind .. ':' .. minute
  local fields = { 'q:' .. queue }
  if by_namespace == 'n' then
    fields[#fields + 1] = 'n'
  end
  if group ~= '' then
    fields[#fields + 1] = 'g:' .. group
    make_room(kind, 'g:' .. group, number)
  end
  for _, field in ipairs(fields) do
    local counted = tonumber(redis.call('HGET', bucket, field) or 0)
    if counted > 0 then
      redis.call('HINCRBY', bucket, field, -math.min(counted, number))
    end
  end
end

local dropped = 0
for _, item in ipairs(cmsgpack.unpack(ARGV[4])) do
  local kind, ticket = item[1], item[2]
  if ticket == '' then
    refund(kind, item[3], item[4], item[5], item[6], item[7])
    make_room(kind, 'q:' .. item[4], item[7])
    make_room(kind, 'n', item[7])
  else
    local record = redis.call('HGET', A .. ':i:' .. kind, ticket)
    if record and (item[4] == '' or item[4] == record) then
      local _, minute, queue, by_namespace, group = string.match(record, '^(%S+) (%S+) (%S*) (%S) (.*)$')
      redis.call('ZREM', A .. ':t:' .. kind, ticket)
      redis.call('ZREM', A .. ':q:' .. kind .. ':' .. queue, ticket)
      redis.call('HDEL', A .. ':i:' .. kind, ticket)
      dropped = dropped + 1
      make_room(kind, 'q:' .. queue, 1)
      make_room(kind, 'n', 1)
      if item[3] == 1 and minute ~= '-' then
        refund(kind, minute, queue, by_namespace, group, 1)
      end
    end
  end
end

for key, number in pairs(room) do
  local want = A .. ':w:' .. key
  if redis.call('EXISTS', want) == 1 then
    redis.call('ZREMRANGEBYSCORE', want, '-inf', text(now - REMEMBER_REFUSALS))
    local kind = string.match(key, '^[^:]*')
    local waiting = redis.call('ZPOPMIN', want, number)
    for i = 1, #waiting, 2 do
      local node, queue = string.match(waiting[i], '^(%S+) (%S*)$')
      redis.call('PUBLISH', PREFIX .. ':room:' .. node, kind .. ' ' .. ARGV[3] .. ' ' .. queue)
    end
  end
end
return dropped
