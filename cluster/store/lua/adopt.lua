-- include: base
-- Gives tickets to leases that exist already, whatever the limits say.
--
-- KEYS[1]  the admission terms of the namespace (routes the script)
-- ARGV[1]  start of the namespace's admission keys   ARGV[2]  kind
-- ARGV[3..] ticket, encoded queue, ...
--
-- Returns how many tickets are new.
-- oom: allow
local A, kind = ARGV[1], ARGV[2]
redis.call('ZREM', A .. ':t:' .. kind, '')
local new = 0
for i = 3, #ARGV, 2 do
  local ticket, queue = ARGV[i], ARGV[i + 1]
  if redis.call('HEXISTS', A .. ':i:' .. kind, ticket) == 0 then
    redis.call('ZADD', A .. ':t:' .. kind, text(now), ticket)
    redis.call('ZADD', A .. ':q:' .. kind .. ':' .. queue, text(now), ticket)
    redis.call('HSET', A .. ':i:' .. kind, ticket, text(now) .. ' - ' .. queue .. ' - ')
    new = new + 1
  end
end
return new
