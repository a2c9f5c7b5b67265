-- include: taking
-- Hands a step that a commit makes ready straight to the slot that the commit frees (rule C).

-- Task and time of each, for whoever has the slot.
local handed = {}

-- Whether nothing that the slot could take precedes the step in this partition, and the node may hand out:
-- its session is not buried, and the terms of admission are those it knows, without any count (D3).
local function may_hand_over(heads, type_part, worker, session, version)
  local scope = string.match(heads, '^[^:]*:[^:]*')
  local terms = redis.call('HMGET', P .. ':adm', scope .. ':v', scope .. ':m')
  return not terms[2] and not (terms[1] and tonumber(terms[1]) > version)
    and not redis.call('ZSCORE', P .. ':h:' .. heads, type_part)
    and redis.call('EXISTS', P .. ':h:' .. sticky_heads(string.match(scope, '[^:]*$'), worker)) == 0
    and not redis.call('ZSCORE', P .. ':dead', session)
end

local function hand_over(id, run, heads, type_part, attempt, lease, timer, after, cap, body, owner, session)
  local key = P .. ':task:' .. id
  redis.call('HSET', key, 's', 'l', 'n', attempt, 'd', '0', 'run', run, 'h', heads, 'y', type_part,
    'at', text(now), 'qi', 'b', 'ls', lease, 'tm', timer, 'th', after, 'tc', cap, 'a', body,
    'o', owner, 'ss', session, 'la', text(now))
  register(heads, type_part)
  redis.call('ZADD', P .. ':lq:' .. task_queue(heads), text(now + tonumber(lease)), id)
  redis.call('SADD', P .. ':on:' .. session, id)
  count('a', heads)
  count('d', heads)
  start_clock(key, timer, after, cap)
  handed[#handed + 1] = id
  handed[#handed + 1] = text(now)
end
