-- include: taking
-- Makes a task that was taken out of its queue the lease of somebody.
-- `entry` is where it stood: an id in the stream of its queue, or "b".

-- A task that waited for one worker or session goes by its own queue again.
local function come_home(id, key, heads, type_part)
  if heads then
    redis.call('HSET', key, 'h', heads, 'y', type_part)
    redis.call('HDEL', key, 'hh', 'hy')
    redis.call('ZREM', P .. ':timers', 'sticky ' .. id)
  end
end

local function hold_ticket(id, key, ticket)
  if ticket ~= '' then
    redis.call('HSET', key, 'tk', ticket)
    redis.call('HSET', P .. ':tk', ticket, id)
  end
end

-- Leases a task of the workflow plane under a token; `registration` only for workflow tasks.
local function lease_to_poll(id, entry, owner, token, ticket, call, registration)
  local key = P .. ':task:' .. id
  local r = redis.call('HMGET', key, 'ls', 'tm', 'th', 'tc', 'hh', 'hy', 'h')
  come_home(id, key, r[5], r[6])
  local heads = r[5] or r[7]
  local expires = now + tonumber(r[1])
  redis.call('HSET', key, 's', 'l', 'o', owner, 'k', token, 'x', text(expires), 'la', text(now),
    'qi', entry, 'c', call)
  if registration then
    redis.call('HSET', key, 'rg', registration)
  end
  redis.call('ZADD', P .. ':leases', text(expires), id)
  redis.call('ZADD', P .. ':lq:' .. task_queue(heads), text(expires), id)
  redis.call('HSET', P .. ':held', token, id)
  hold_ticket(id, key, ticket)
  count('d', heads)
  start_clock(key, r[2], r[3], r[4])
end

-- What is read of the record of a step that may be handed out.
local function step_record(id)
  local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'qi', 'h', 'y', 'run', 'ex', 'n', 'd', 'tm', 'th', 'tc', 'hh',
    'hy', 'ls')
  return { state = r[1], entry = r[2], heads = r[3], type_part = r[4], run = r[5], excluded = r[6], attempt = r[7],
    delivery = r[8], timer = r[9], after = r[10], cap = r[11], home = r[12], home_type = r[13], lease = r[14] }
end

-- Hands a step, with its record, to a slot on a stream of `session`.
local function lease_to_stream(id, r, entry, worker, session, ticket)
  local key = P .. ':task:' .. id
  redis.call('HSET', key, 's', 'l', 'o', worker, 'ss', session, 'la', text(now), 'qi', entry)
  come_home(id, key, r.home, r.home_type)
  hold_ticket(id, key, ticket)
  local heads = r.home or r.heads
  redis.call('ZADD', P .. ':lq:' .. task_queue(heads), text(now + tonumber(r.lease)), id)
  redis.call('SADD', P .. ':on:' .. session, id)
  count('d', heads)
  start_step_clock(r.timer, r.after, r.cap)
end
