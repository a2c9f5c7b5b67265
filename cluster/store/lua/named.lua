-- include: base
-- Which of these tickets a live lease of the partition names. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2..] tickets
--
-- Returns 1 or 0 for each. A lease that has run out names nothing: no heartbeat moves it any more. That of a
-- step runs until its attempt ends, and has no expiry of its own.
-- oom: allow (reads only)
P = ARGV[1]
local named = {}
for i = 2, #ARGV do
  local id = redis.call('HGET', P .. ':tk', ARGV[i])
  named[i - 1] = 0
  if id then
    local r = redis.call('HMGET', P .. ':task:' .. id, 's', 'tk', 'x')
    if r[1] == 'l' and r[2] == ARGV[i] and (not r[3] or tonumber(r[3]) > now) then
      named[i - 1] = 1
    end
  end
end
return named
