-- include: taking
-- Hands a step that a commit makes ready straight to the slot that the commit frees (rule C).

-- Task and time of each, for whoever has the slot.
local handed = {}

-- Whether nothing precedes the step in this partition that has waited for `sync` ms, of its type or for its
-- worker (R32), and the node may hand out: its session is not buried, and the terms of admission are those it
-- knows, without any count (D3).
local function may_hand_over(heads, type_part, worker, sync, session, version)
  local scope = string.match(heads, '^[^:]*:[^:]*')
  local terms = redis.call('HMGET', P .. ':adm', scope .. ':v', scope .. ':m')
  if terms[2] or (terms[1] and tonumber(terms[1]) > version) then
    return false
  end
  local namespace, flow_type = string.match(heads, '^[^:]*:([^:]*):([^:]*)')
  local head = redis.call('ZSCORE', P .. ':h:' .. heads, type_part)
  local sticky = redis.call('ZSCORE', P .. ':h:' .. sticky_heads(namespace, worker), flow_type)
  local backlog = now - sync
  return not (head and tonumber(head) <= backlog) and not (sticky and tonumber(sticky) <= backlog)
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
