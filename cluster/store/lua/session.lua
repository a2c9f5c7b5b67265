-- include: base
-- Renews a node session (the first renewal joins) and passes verdicts on silent ones (E1).
--
-- A session dies only by verdict: expired, it is first suspected; still expired `patience` later
-- it is buried. The mark counts only in the store generation it was made in and only while it is
-- fresh, so neither an outage nor a failover nor a frozen Redis buries the living.
--
-- KEYS     {sess}:alive, {sess}:info, {sess}:suspect, {sess}:dead
-- ARGV[1]  incarnation               ARGV[2]  its description (JSON)
-- ARGV[3]  time to live (ms)         ARGV[4]  store generation of the caller
-- ARGV[5]  patience (ms)             ARGV[6]  age at which a mark is void (ms)
-- ARGV[7]  memory of the dead (ms)   ARGV[8]  report burials since (ms)
-- ARGV[9]  channel to tell of an arrival
-- ARGV[10] 1: tell it of this renewal too
--
-- Returns [now in us, live, buried, next verdict], or [now in us] when this session is buried:
--   live          [incarnation, expiry ms, description, ...] of all sessions that are not expired
--   buried        [incarnation, burial ms, ...]
--   next verdict  when the next session could be suspected or buried (ms), or -1
-- oom: allow
local ALIVE, INFO, SUSPECT, DEAD = unpack(KEYS)
local me, generation = ARGV[1], ARGV[4]
local ttl, patience, void, memory = tonumber(ARGV[3]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])
local now_us = time[1] * 1000000 + time[2]
local CHUNK = 100
local MOST = 1000

redis.call('ZREMRANGEBYSCORE', DEAD, '-inf', text(now - memory))
if redis.call('ZSCORE', DEAD, me) then
  return { now_us }
end

local arrived = redis.call('ZADD', ALIVE, text(now + ttl), me) == 1
redis.call('HSET', INFO, me, ARGV[2])
redis.call('HDEL', SUSPECT, me)
redis.call('PEXPIRE', ALIVE, memory)
redis.call('PEXPIRE', INFO, memory)
if arrived or ARGV[10] == '1' then
  redis.call('PUBLISH', ARGV[9], 'nodes')
end

local next_verdict
local function verdict_at(ms)
  if not next_verdict or ms < next_verdict then
    next_verdict = ms
  end
end

for _, session in ipairs(redis.call('ZRANGEBYSCORE', ALIVE, '-inf', text(now), 'LIMIT', 0, CHUNK)) do
  local since, within = string.match(redis.call('HGET', SUSPECT, session) or '', '^(%d+) (.*)$')
  since = tonumber(since)
  if not since or within ~= generation or now - since >= void or since > now then
    redis.call('HSET', SUSPECT, session, text(now) .. ' ' .. generation)
    redis.call('PEXPIRE', SUSPECT, memory)
    verdict_at(now + patience)
  elseif now - since >= patience then
    redis.call('ZADD', DEAD, text(now), session)
    redis.call('PEXPIRE', DEAD, memory)
    redis.call('ZREM', ALIVE, session)
    redis.call('HDEL', INFO, session)
    redis.call('HDEL', SUSPECT, session)
  else
    verdict_at(since + patience)
  end
end

local live = {}
local names = redis.call('ZRANGEBYSCORE', ALIVE, '(' .. text(now), '+inf', 'WITHSCORES', 'LIMIT', 0, MOST)
for i = 1, #names, 2 do
  local expiry = tonumber(names[i + 1])
  live[#live + 1] = names[i]
  live[#live + 1] = expiry
  live[#live + 1] = redis.call('HGET', INFO, names[i]) or '{}'
  if names[i] ~= me then
    verdict_at(expiry)
  end
end

local buried = {}
local graves = redis.call('ZRANGEBYSCORE', DEAD, ARGV[8], '+inf', 'WITHSCORES', 'LIMIT', 0, MOST)
for i = 1, #graves, 2 do
  buried[#buried + 1] = graves[i]
  buried[#buried + 1] = tonumber(graves[i + 1])
end
return { now_us, live, buried, next_verdict or -1 }
