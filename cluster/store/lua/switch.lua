-- include: base
-- Begins, completes or ends the counting of leases of one kind in a namespace.
--
-- KEYS[1]  the admission terms of the namespace
-- ARGV[1]  kind   ARGV[2]  "begin", "open" or "close"   ARGV[3]  who does it (a new name each time)
-- ARGV[4]  for "close": ms for which nobody may have needed it
--
-- begin  [name under which counting is on, or ""; 1 if ARGV[3] may switch it on, 0 if somebody else is
--        at it, for 3 s at most]
-- open   1 when it is on now, 0 when somebody else took over
-- close  1 when what ARGV[3] switched on was unused for that long and now is off, else 0
-- oom: refuse
local TAKE_OVER_AFTER = 3000
local kind, who = ARGV[1], ARGV[3]
local on, raising, used = 'on:' .. kind, 'raising:' .. kind, 'used:' .. kind
local r = redis.call('HMGET', KEYS[1], on, raising, used)
local raiser, since = string.match(r[2] or '', '^(%S+) (%d+)$')
if ARGV[2] == 'begin' then
  if r[1] then
    return { r[1], 0 }
  end
  if raiser and raiser ~= who and now - tonumber(since) < TAKE_OVER_AFTER then
    return { '', 0 }
  end
  redis.call('HSET', KEYS[1], raising, who .. ' ' .. text(now))
  return { '', 1 }
elseif ARGV[2] == 'open' then
  if raiser ~= who then
    return r[1] == who and 1 or 0
  end
  redis.call('HSET', KEYS[1], on, who, used, text(now))
  redis.call('HDEL', KEYS[1], raising)
  return 1
end
if r[1] ~= who or now - tonumber(r[3] or 0) < tonumber(ARGV[4]) then
  return 0
end
redis.call('HDEL', KEYS[1], on, used)
return 1
