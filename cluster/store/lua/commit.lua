-- include: handing
-- Applies transactions, each of one partition and wholly or not at all; on a cluster all are of one partition.
--
-- KEYS[1]  any key of the partition (routes the script)
-- ARGV[1]  "refuse" or "allow": what to do when Redis is out of memory
-- ARGV[2]  prefix of the cluster
-- ARGV[3..]  in turn: start of a partition's keys, and a transaction of it as
--            msgpack [ring key or "", request id or "", conditions, operations]
--
-- Returns one entry per transaction:
--   {1, ended, handed out}  applied
--     ended       [heads, ticket, ...]: the admission tickets of leases that it ended
--     handed out  [task, time in ms, ...]: new steps that went straight to a slot
--   {2}                     this request id is among the run's last 16: applied earlier
--   {0, index, actual}      condition `index` (from 0) does not hold; nothing was done
--   {-1, text}              an internal error; the conditions held
-- oom: ARGV[1]
PREFIX = ARGV[2]

-- A no-cost first write decides how the rest of the script meets a full memory: ZREM passes and
-- lets everything after it pass, SETRANGE of nothing is refused and refuses the whole script.
local announced = false
local function announce_write()
  if announced then
    return
  end
  announced = true
  if ARGV[1] == 'allow' then
    redis.call('ZREM', P .. ':timers', '')
  else
    redis.call('SETRANGE', P .. ':touch', 0, '')
  end
end

-- What was read of the run with its request ids.
local ring_key, ring_fields
local function field_of(key, name)
  if key == ring_key and ring_fields[name] ~= nil then
    return ring_fields[name]
  end
  return redis.call('HGET', key, name)
end

local conditions = {
  eq = function(c)
    local actual = field_of(c[2], c[3])
    return actual == c[4], actual
  end,
  unset = function(c)
    local actual = field_of(c[2], c[3])
    return not actual, actual
  end,
  absent = function(c)
    return redis.call('EXISTS', c[2]) == 0
  end,
  task = function(c)
    local r = record_of(c[2])
    known_id, known = c[2], r
    local holds = r.state == c[3] and r.attempt == c[4] and (c[5] == '' or r.delivery == c[5])
      and (c[6] == '' or r.owner == c[6]) and (c[7] == '' or r.session == c[7])
    return holds, r.state
  end,
  state = function(c)
    local actual = redis.call('HGET', P .. ':task:' .. c[2], 's') or ''
    return actual == c[3], actual
  end,
  lapsed = function(c)
    local expires = redis.call('HGET', P .. ':task:' .. c[2], 'x')
    return expires and tonumber(expires) <= now, expires
  end,
  unlapsed = function(c)
    local expires = redis.call('HGET', P .. ':task:' .. c[2], 'x')
    return expires and tonumber(expires) > now, expires
  end,
  due = function(c)
    local due = redis.call('ZSCORE', P .. ':timers', c[2])
    return due and tonumber(due) == tonumber(c[3]) and tonumber(due) <= now, due
  end,
  lease = function(c)
    local r = redis.call('HMGET', P .. ':lease', 'owner', 'nonce', 'until')
    return r[1] == c[2] and r[2] == c[3] and tonumber(r[3]) > now, r[1]
  end,
}

local RELEASE_AT_ONCE = 500
local SIGNAL = '^{"id":"[^"]*","event_type":"SignalReceived"'

-- Events that waited get their place in the history: `sequence` becomes their first member.
local function release(run, ordinal, signals_to, signals_ordinal)
  local from = P .. ':pend:' .. run
  local count = redis.call('LLEN', from)
  for start = 0, count - 1, RELEASE_AT_ONCE do
    local kept, moved = {}, {}
    for _, event in ipairs(redis.call('LRANGE', from, start, start + RELEASE_AT_ONCE - 1)) do
      local there = signals_to ~= '' and string.find(event, SIGNAL) ~= nil
      local list, number = kept, ordinal + #kept
      if there then
        list, number = moved, signals_ordinal + #moved
      end
      list[#list + 1] = '{"sequence":' .. text(number) .. ',' .. string.sub(event, 2)
    end
    if #kept > 0 then
      redis.call('RPUSH', P .. ':hist:' .. run, unpack(kept))
    end
    if #moved > 0 then
      redis.call('RPUSH', P .. ':hist:' .. signals_to, unpack(moved))
    end
    ordinal, signals_ordinal = ordinal + #kept, signals_ordinal + #moved
  end
  redis.call('DEL', from)
end

local function begin(run, workflow, ns, ns_part, number, started, fields, events)
  redis.call('HSET', P .. ':wf:' .. workflow, 'ns', ns, 'run', run, 'runs', number, 'r' .. number, run)
  redis.call('HSET', P .. ':run:' .. run, unpack(fields))
  redis.call('RPUSH', P .. ':hist:' .. run, unpack(events))
  redis.call('ZADD', P .. ':runs:' .. ns_part, started, run)
end

local verbs = {
  ['@begin'] = function(o)
    begin(o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9])
  end,
  ['@release'] = function(o)
    release(o[2], tonumber(o[3]), o[4], tonumber(o[5]))
  end,
  ['@enqueue'] = function(o)
    enqueue(o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9], o[10], o[11])
  end,
  ['@requeue'] = function(o)
    requeue(o[2], o[3], o[4], o[5])
  end,
  ['@aside'] = function(o)
    requeue(o[2], o[3], o[4], o[7], o[5])
    arm('sticky ' .. o[2], tonumber(o[6]))
  end,
  ['@offer'] = function(o)
    offer(o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9], o[10], o[11], o[12], o[13], o[14], o[15])
  end,
  ['@hand'] = function(o)
    if not any_waits(o[19], tonumber(o[14])) and may_hand_over(o[4], o[5], o[12], tonumber(o[14]), o[16], tonumber(o[17])) then
      hand_over(o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9], o[10], o[11], o[18], o[16])
    else
      offer(o[2], o[3], o[4], o[5], o[6], o[7], o[8], o[9], o[10], o[11], o[12], o[13], o[14], o[15])
    end
  end,
  ['@unstick'] = function(o)
    unstick(o[2], o[3])
  end,
  ['@drop'] = function(o)
    if o[3] == '1' then
      tell_holder(o[2], 'attempt_over')
    end
    drop(o[2])
  end,
  ['@ask'] = function(o)
    tell_holder(o[2], 'cancel_requested')
  end,
  ['@extend'] = function(o)
    extend(o[2], o[3])
  end,
  ['@arm'] = function(o)
    arm(o[2], tonumber(o[3]))
  end,
  ['@disarm'] = function(o)
    redis.call('ZREM', P .. ':timers', o[2])
  end,
}

local RING_ENTRIES = 16
local function with_request(earlier, request_id)
  local ids = (earlier or '') .. request_id .. ' '
  local surplus = #ids - RING_ENTRIES * (#request_id + 1)
  return surplus > 0 and string.sub(ids, surplus + 1) or ids
end

-- Does one operation after the other. The request ids go with the first fields of the run that are set.
local function operate(operations, ring, ids)
  for _, o in ipairs(operations) do
    local verb = verbs[o[1]]
    if verb then
      verb(o)
      known_id = nil
    else
      if ids and o[1] == 'HSET' and o[2] == ring then
        o[#o + 1], o[#o + 2] = 'rids', ids
        ids = nil
      elseif known_id and o[2] == P .. ':task:' .. known_id then
        known_id = nil
      end
      redis.call(unpack(o))
    end
  end
  if ids then
    redis.call('HSET', ring, 'rids', ids)
  end
end

local function apply(tx)
  local ring, request_id = tx[1], tx[2]
  local watched_until, ids
  known_id, ring_key = nil, nil
  if ring ~= '' then
    local r = redis.call('HMGET', ring, 'rids', 'watch', 'v', 'c')
    if r[1] and string.find(r[1], request_id, 1, true) then
      return { 2 }
    end
    watched_until, ids = tonumber(r[2] or nil), with_request(r[1], request_id)
    ring_key, ring_fields = ring, { v = r[3], c = r[4] }
  end
  for index, c in ipairs(tx[3]) do
    local holds, actual = conditions[c[1]](c)
    if not holds then
      return { 0, index - 1, actual or false }
    end
  end
  announce_write()
  ended, ended_in, handed = {}, nil, {}
  operate(tx[4], ring, ids)
  if watched_until and watched_until > now then
    redis.call('PUBLISH', PREFIX .. ':events:' .. string.match(ring, ':run:(.*)$'), '')
  end
  return { 1, ended, handed }
end

local replies = {}
for i = 3, #ARGV, 2 do
  P = ARGV[i]
  local done, reply = pcall(apply, cmsgpack.unpack(ARGV[i + 1]))
  if not done then
    local message = type(reply) == 'table' and reply.err or tostring(reply)
    if string.find(message, 'OOM', 1, true) == 1 then
      return redis.error_reply(message)
    end
    reply = { -1, message }
  end
  replies[#replies + 1] = reply
end
write_counts()
return replies
