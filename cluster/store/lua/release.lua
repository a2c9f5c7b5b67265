-- Gives partition leases back; each keeps its epoch, so that the next one is greater.
--
-- KEYS       lease of each partition
-- ARGV[1]    owner    ARGV[2]  channel to tell of it
-- ARGV[3..]  for each key the nonce held
--
-- Returns how many were still held and are free now.
-- oom: allow
local released = 0
for i, key in ipairs(KEYS) do
  local r = redis.call('HMGET', key, 'owner', 'nonce')
  if r[1] == ARGV[1] and r[2] == ARGV[2 + i] then
    redis.call('HDEL', key, 'owner', 'nonce', 'until')
    released = released + 1
  end
end
if released > 0 then
  redis.call('PUBLISH', ARGV[2], 'partitions')
end
return released
