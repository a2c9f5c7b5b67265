-- Sets whether a cohort (task queue, build id) drains.
--
-- KEYS[1]  hash of drain intents       KEYS[2]  set of workers that were told to drain
-- ARGV[1]  cohort     ARGV[2]  "drain" or "resume"     ARGV[3]  channel     ARGV[4]  message
-- ARGV[5..]  workers of the cohort, of which a resume takes the mark
--
-- Returns the intent as stored: "draining <since ms>" or "active". Draining twice keeps the time.
-- oom: refuse
local intent = redis.call('HGET', KEYS[1], ARGV[1])
if ARGV[2] == 'resume' then
  intent = 'active'
elseif not intent or intent == 'active' then
  local time = redis.call('TIME')
  intent = string.format('draining %.0f', time[1] * 1000 + math.floor(time[2] / 1000))
end
redis.call('HSET', KEYS[1], ARGV[1], intent)
if ARGV[2] == 'resume' then
  for i = 5, #ARGV do
    redis.call('SREM', KEYS[2], ARGV[i])
  end
end
redis.call('PUBLISH', ARGV[3], ARGV[4])
return intent
