-- include: queues
-- Says which workers have shared streams on a node, so that commits can prefer them (R28, R30).
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  prefix of the cluster
-- ARGV[3]  session of the node
-- ARGV[4]  msgpack [arrived, gone]: workers as `<namespace>:<worker>`, at most 100
--
-- Steps that wait for a worker who is on no node any more go to their queues, 100 a call.
-- Returns "FENCED" when the session is buried and somebody arrived, else the workers whose steps are
-- not all gone yet: name them again.
-- oom: allow
P, PREFIX = ARGV[1], ARGV[2]
local CHUNK = 100
local session = ARGV[3]
local arrived, gone = unpack(cmsgpack.unpack(ARGV[4]))

if #arrived > 0 and redis.call('ZSCORE', P .. ':dead', session) then
  return 'FENCED'
end
redis.call('ZREM', P .. ':timers', '')

for _, worker in ipairs(arrived) do
  redis.call('SADD', P .. ':wk:' .. worker, session)
  redis.call('SADD', P .. ':ses:' .. session, worker)
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
  if redis.call('EXISTS', P .. ':wk:' .. worker) == 0 and not unstick_all(worker) then
    unfinished[#unfinished + 1] = worker
  else
    redis.call('SREM', P .. ':ses:' .. session, worker)
  end
end
return unfinished
