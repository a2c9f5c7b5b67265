-- include: base
-- What readers of a run are shown of its tasks.

-- A task's record as [id, state, attempt, delivery, owner, leased at, expires, heartbeat at, progress,
-- registration], or [] when there is none.
local function task(id)
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'n', 'd', 'o', 'la', 'x', 'hb', 'pg', 'rg')
  if not r[1] then
    return {}
  end
  table.insert(r, 1, id)
  for i = 1, 10 do
    r[i] = r[i] or ''
  end
  return r
end
