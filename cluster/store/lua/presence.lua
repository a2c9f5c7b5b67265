-- include: queues
-- Says which workers have shared streams on a node, so that commits can prefer them (R28, R30).
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  prefix of the cluster
-- ARGV[3]  session of the node
-- ARGV[4]  msgpack [arrived, gone], at most 100 each:
--            arrived  [worker as `<namespace>:<worker>`, what its slots there can run, "" for unknown]
--            gone     workers
--
-- Steps that wait for a worker who is on no node any more go to their queues, 100 a call. Of those that wait
-- for one who can run other things now, the oldest 500 of a flow type are looked at; a timer ends the wait of
-- the others.
-- Returns "FENCED" when the session is buried and somebody arrived, else the workers whose steps are
-- not all gone yet: name them again.
-- oom: allow
P, PREFIX = ARGV[1], ARGV[2]
local CHUNK, LOOK = 100, 500
local session = ARGV[3]
local arrived, gone = unpack(cmsgpack.unpack(ARGV[4]))

if #arrived > 0 and redis.call('ZSCORE', P .. ':dead', session) then
  return 'FENCED'
end
redis.call('ZREM', P .. ':timers', '')

-- Steps that wait for a worker none of whose slots can run them any more go to their own queues.
local function unstick_unable(worker)
  local heads = 't:' .. worker .. ':'
  for _, flow_type in ipairs(redis.call('ZRANGE', P .. ':h:' .. heads, 0, -1)) do
    for _, id in ipairs(redis.call('ZRANGE', P .. ':b:' .. heads .. ':' .. flow_type, 0, LOOK - 1)) do
      local type_part = redis.call('HGET', P .. ':task:' .. id, 'hy')
      if type_part and not may_take(worker, flow_type, type_part) then
        unstick(id)
      end
    end
  end
end

for _, row in ipairs(arrived) do
  local worker, abilities = row[1], row[2]
  local known = redis.call('SADD', P .. ':wk:' .. worker, session) == 0
  redis.call('SADD', P .. ':ses:' .. session, worker)
  if abilities == '' then
    redis.call('HDEL', P .. ':wt:' .. worker, session)
  else
    redis.call('HSET', P .. ':wt:' .. worker, session, abilities)
  end
  if known then
    unstick_unable(worker)
  end
end

-- Steps that wait for a worker go to their own queues; whether all of them have.
local function unstick_all(worker)
  local heads, left = 't:' .. worker .. ':', CHUNK
  for _, flow_type in ipairs(redis.call('ZRANGE', P .. ':h:' .. heads, 0, -1)) do
    local list = P .. ':b:' .. heads .. ':' .. flow_type
    local waiting = left > 0 and redis.call('ZRANGE', list, 0, left - 1) or {}
    for _, id in ipairs(waiting) do
      unstick(id)
      redis.call('ZREM', list, id)
    end
    left = left - #waiting
    if redis.call('EXISTS', list) == 1 then
      return false
    end
  end
  return true
end

local unfinished = {}
for _, worker in ipairs(gone) do
  redis.call('SREM', P .. ':wk:' .. worker, session)
  redis.call('HDEL', P .. ':wt:' .. worker, session)
  local elsewhere = redis.call('EXISTS', P .. ':wk:' .. worker) == 1
  if elsewhere then
    unstick_unable(worker)
  end
  if elsewhere or unstick_all(worker) then
    redis.call('SREM', P .. ':ses:' .. session, worker)
  else
    unfinished[#unfinished + 1] = worker
  end
end
return unfinished
