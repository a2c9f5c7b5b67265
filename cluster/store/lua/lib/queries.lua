-- include: base
-- Query tasks of one queue. `P` is the common start of their keys.
--
-- A waiting query stands in `P:pending` and in the index of its build marker and workflow type, in
-- both as `<id> <marker>:<type>`, scored by when its caller gives up.
local PRUNE_LIMIT = 100

local function index_of(member)
  return P .. ':t:' .. string.match(member, ' (.*)$')
end

local function wait_in_line(member, deadline, keep_ms)
  for _, key in ipairs({ P .. ':pending', index_of(member) }) do
    redis.call('ZADD', key, deadline, member)
    redis.call('PEXPIRE', key, keep_ms)
  end
end

local function leave_line(member)
  redis.call('ZREM', P .. ':pending', member)
  redis.call('ZREM', index_of(member), member)
end

local function prune()
  local late = redis.call('ZRANGE', P .. ':pending', '-inf', text(now), 'BYSCORE', 'LIMIT', 0, PRUNE_LIMIT)
  for _, member in ipairs(late) do
    leave_line(member)
  end
end
