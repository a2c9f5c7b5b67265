-- include: base
-- Tells a partition under which terms tasks of one kind and namespace may be claimed.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  "<kind>:<encoded namespace>"
-- ARGV[3]  version of the limits, or ""    ARGV[4]  "on" or "off" or ""   ARGV[5]  who counts leases
--
-- A version never goes back. "on": leases are counted, on behalf of ARGV[5]; "off" takes back what
-- the same ARGV[5] switched on, and nothing else.
-- oom: refuse
P = ARGV[1]
local key, field = P .. ':adm', ARGV[2]
if ARGV[3] ~= '' and tonumber(ARGV[3]) > tonumber(redis.call('HGET', key, field .. ':v') or 0) then
  redis.call('HSET', key, field .. ':v', ARGV[3])
end
if ARGV[4] == 'on' then
  redis.call('HSET', key, field .. ':m', ARGV[5])
elseif ARGV[4] == 'off' and redis.call('HGET', key, field .. ':m') == ARGV[5] then
  redis.call('HDEL', key, field .. ':m')
end
return 1
