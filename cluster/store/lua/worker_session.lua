-- include: base
-- One worker session: who holds it, until when, and which activities run in it.
--
-- KEYS[1]  record of the session: worker, lease and ttl (ms), since, max, again, every (ms), options, closed
-- KEYS[2]  activities that run in it, by the end of their leases (ms)
-- KEYS[3]  partitions where tasks of the session may wait for it
-- ARGV[1]  verb: take, renew, close, leave, look
-- ARGV[2]  encoded session id         ARGV[3]  worker
-- ARGV[4]  channel of changes         ARGV[5]  encoded namespace
-- ARGV[6]  msgpack of what the verb needs besides:
--   take   [options, lease ms, ttl ms, max, again, create, most sessions of a worker, task or "",
--           end of its lease, its partition]
--   renew  [lease ms]    close [reason]    leave [task, end of its lease: -1 when it is over]
--   look   []: changes nothing; held means that there is room
--
-- Returns [outcome, now, worker, lease, ttl, since, options, next, partitions, new]:
--   outcome  held, taken (by another worker), lost (its holder failed and nobody may follow), missing,
--            full (as many activities run as may), crowded (the worker holds as many as it may), closed
--   next     when it makes sense to look again
--   new      1 when the session has just been acquired
-- A session that was closed or has reached its ttl is missing. Any sign of life of the holder renews.
-- oom: refuse
local record, busy, waiting = KEYS[1], KEYS[2], KEYS[3]
local verb, id, me, channel, namespace = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local request = cmsgpack.unpack(ARGV[6])
local KEEP = 24 * 3600 * 1000
local LOOK_AGAIN = 10000
local base = string.match(record, '^(.*}):')

local function read(key)
  local r = redis.call('HMGET', key, 'worker', 'lease', 'ttl', 'since', 'max', 'again', 'every', 'options', 'closed')
  local state = 'missing'
  if r[1] and not r[9] and tonumber(r[3]) > now then
    state = tonumber(r[2]) > now and 'held' or 'lapsed'
  end
  return { state = state, worker = r[1] or '', lease = tonumber(r[2] or 0), ttl = tonumber(r[3] or 0),
    since = r[4] or '0', max = tonumber(r[5] or 0), again = r[6] == '1', every = tonumber(r[7] or 0),
    options = r[8] or '', closed = r[9] }
end
local s = read(record)

local function encoded(worker)
  return (string.gsub(worker, '[^%w_.~-]', function(c)
    return string.format('%%%02X', string.byte(c))
  end))
end

-- The sessions that a worker holds, without those that are over; its polls look for their tasks.
local function hold(worker, wanted)
  local key = base .. ':holds:' .. encoded(worker)
  local kept, count = {}, 0
  for other in string.gmatch(redis.call('GET', key) or '', '%S+') do
    if other ~= id then
      local it = read(base .. ':ses:' .. other)
      if it.state ~= 'missing' and it.worker == worker then
        kept[#kept + 1] = other
      end
    end
  end
  if wanted then
    kept[#kept + 1] = id
  end
  if #kept == 0 then
    redis.call('DEL', key)
  else
    redis.call('SET', key, table.concat(kept, ' '), 'PX', text(s.ttl - now + KEEP))
  end
  redis.call('PUBLISH', channel, 'holds ' .. namespace .. ' ' .. encoded(worker))
end

local function holds(worker)
  local count = 0
  for other in string.gmatch(redis.call('GET', base .. ':holds:' .. encoded(worker)) or '', '%S+') do
    local it = other ~= id and read(base .. ':ses:' .. other)
    if it and it.state ~= 'missing' and it.worker == worker then
      count = count + 1
    end
  end
  return count
end

local function keep()
  for _, key in ipairs(KEYS) do
    redis.call('PEXPIRE', key, text(math.max(s.ttl - now, 0) + KEEP))
  end
end

local function renew(every)
  s.lease = math.min(math.max(s.lease, now + every), s.ttl)
  redis.call('HSET', record, 'lease', text(s.lease))
end

local function answer(outcome, following, new)
  local partitions = redis.call('SMEMBERS', waiting)
  return { outcome, text(now), s.worker, text(s.lease), text(s.ttl), s.since, s.options,
    text(following or s.lease), partitions, new or 0 }
end

local function wait(outcome, partition, following)
  if partition >= 0 then
    redis.call('SADD', waiting, partition)
    redis.call('PEXPIRE', waiting, KEEP)
  end
  return answer(outcome, following)
end

if verb == 'take' then
  local options, lease, ttl, max, again, create, most, task, ends, partition = unpack(request)
  local new = 0
  if s.state == 'held' and s.worker ~= me then
    return wait('taken', partition, s.lease)
  elseif s.state == 'lapsed' and s.worker ~= me and not s.again then
    return answer('lost')
  elseif s.state == 'missing' and create ~= 1 then
    return wait('missing', partition, now + LOOK_AGAIN)
  elseif s.state == 'missing' or s.worker ~= me then
    if holds(me) >= most then
      return wait('crowded', partition, now + LOOK_AGAIN)
    end
    local before = s.worker
    if s.state == 'missing' then
      redis.call('DEL', busy)
    end
    s = { worker = me, since = text(now), lease = 0, ttl = now + ttl, max = max, every = lease, options = options }
    redis.call('DEL', record)
    redis.call('HSET', record, 'worker', me, 'since', s.since, 'ttl', text(s.ttl), 'max', max, 'again', again,
      'every', lease, 'options', options)
    renew(lease)
    hold(me, true)
    if before ~= '' and before ~= me then
      hold(before, false)
    end
    new = 1
  else
    renew(lease)
  end
  if task ~= '' and not redis.call('ZSCORE', busy, task) then
    redis.call('ZREMRANGEBYSCORE', busy, '-inf', text(now))
    if redis.call('ZCARD', busy) >= s.max then
      keep()
      return wait('full', partition, now + LOOK_AGAIN)
    end
  end
  if task ~= '' then
    redis.call('ZADD', busy, text(ends), task)
  end
  keep()
  return answer('held', nil, new)
end

if verb == 'leave' then
  local task, ends = unpack(request)
  if s.state ~= 'missing' and s.worker == me then
    renew(s.every)
  end
  if ends >= 0 then
    redis.call('ZADD', busy, 'XX', text(ends), task)
  else
    redis.call('ZREM', busy, task)
  end
  return answer(s.state)
end

if verb == 'look' then
  local running = redis.call('ZCOUNT', busy, '(' .. text(now), '+inf')
  return answer(s.state == 'held' and (s.worker ~= me and 'taken' or running >= s.max and 'full') or s.state)
end

if s.worker ~= me and s.state ~= 'missing' then
  return answer('taken')
elseif verb == 'close' and s.worker == me and (s.closed or s.state ~= 'missing') then
  if not s.closed then
    redis.call('HSET', record, 'closed', request[1])
    hold(me, false)
    keep()
  end
  return answer('closed')
elseif s.state == 'missing' then
  return answer('missing')
end
renew(request[1])
return answer('held')
