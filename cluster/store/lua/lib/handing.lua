-- include: taking
-- Hands a step that a commit makes ready straight to the slot that the commit frees (rule C).

-- Task and time of each, for whoever has the slot.
local handed = {}

-- The terms of admission and the burials of a partition, read once for all that a script does there.
local admission, burials = {}, {}
local function terms_of(scope)
  local place = P .. scope
  admission[place] = admission[place] or redis.call('HMGET', P .. ':adm', scope .. ':v', scope .. ':m')
  return admission[place]
end

local function is_buried(session)
  local place = P .. session
  if burials[place] == nil then
    burials[place] = redis.call('ZSCORE', P .. ':dead', session) and true or false
  end
  return burials[place]
end

-- Whether anything under these heads has waited for `sync` ms. The commits of one node doubt the same ones,
-- so a script looks at each once.
local oldest_under = {}
local function any_waits(keys, sync)
  for _, key in ipairs(keys) do
    if oldest_under[key] == nil then
      local first = redis.call('ZRANGE', key, 0, 0, 'WITHSCORES')
      oldest_under[key] = tonumber(first[2] or nil) or false
    end
    if oldest_under[key] and oldest_under[key] <= now - sync then
      return true
    end
  end
  return false
end

-- Whether nothing precedes the step in this partition that has waited for `sync` ms, of its type or for its
-- worker (R32), and the node may hand out: its session is not buried, and the terms of admission are those it
-- knows, without any count (D3).
local function may_hand_over(heads, type_part, worker, sync, session, version)
  local scope = string.match(heads, '^[^:]*:[^:]*')
  local terms = terms_of(scope)
  if terms[2] or (terms[1] and tonumber(terms[1]) > version) then
    return false
  end
  local namespace, flow_type = string.match(heads, '^[^:]*:([^:]*):([^:]*)')
  local head = redis.call('ZSCORE', P .. ':h:' .. heads, type_part)
  local sticky = redis.call('ZSCORE', P .. ':h:' .. sticky_heads(namespace, worker), flow_type)
  local backlog = now - sync
  return not (head and tonumber(head) <= backlog) and not (sticky and tonumber(sticky) <= backlog)
    and not is_buried(session)
end

local function hand_over(id, run, heads, type_part, attempt, lease, timer, after, cap, body, owner, session)
  create(id, run, heads, type_part, attempt, lease, timer, after, cap, body,
    { 's', 'l', 'qi', 'b', 'o', owner, 'ss', session, 'la', text(now) })
  if ended_in ~= task_queue(heads) then
    -- Else the lease that this commit has ended kept the task queue registered, and this one does.
    register(heads, type_part)
  end
  redis.call('ZADD', P .. ':lq:' .. task_queue(heads), text(now + tonumber(lease)), id)
  redis.call('SADD', P .. ':on:' .. session, id)
  count('a', heads)
  count('d', heads)
  start_step_clock(timer, after, cap)
  handed[#handed + 1] = id
  handed[#handed + 1] = text(now)
end
