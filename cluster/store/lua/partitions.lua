-- include: base
-- Renews the partition leases a node holds and takes free ones (E4).
--
-- A lease is (owner incarnation, nonce of this tenure, epoch); owner and nonce are compared, never
-- the epoch alone. One that expired untaken may be renewed: nobody else acted in between.
--
-- KEYS       lease of each partition asked about
-- ARGV[1]    owner                           ARGV[2]  time to live (ms)
-- ARGV[3]    how many free leases to take    ARGV[4]  nonce for those taken
-- ARGV[5..]  for each key the nonce held, or ""
--
-- Returns [now, owner, until, epoch, standing, owner, until, epoch, standing, ...]; a free lease has
-- owner "". Standing is 1 kept, 2 taken, 0 neither. A lease that has the nonce for new ones already
-- is taken once more: the reply that told of it was lost.
-- oom: allow
local owner, ttl, want, fresh = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3]), ARGV[4]

local leases = {}
for i, key in ipairs(KEYS) do
  local r = redis.call('HMGET', key, 'owner', 'nonce', 'until', 'epoch')
  leases[i] = { owner = r[1] or '', nonce = r[2] or '', ends = tonumber(r[3] or 0), epoch = tonumber(r[4] or 0) }
end

redis.call('HDEL', KEYS[1], '')
local reply = { now }
for i, key in ipairs(KEYS) do
  local lease, held = leases[i], ARGV[4 + i]
  local standing = 0
  if lease.owner == owner and (lease.nonce == held or lease.nonce == fresh) then
    standing = lease.nonce == held and 1 or 2
    lease.ends = now + ttl
    redis.call('HSET', key, 'until', text(lease.ends))
  elseif lease.owner == '' or lease.ends <= now then
    lease.owner = ''
    if want > 0 then
      want, standing = want - 1, 2
      lease.owner, lease.ends, lease.epoch = owner, now + ttl, math.max(lease.epoch + 1, now)
      redis.call('HSET', key, 'owner', owner, 'nonce', fresh, 'epoch', text(lease.epoch), 'until', text(lease.ends))
    end
  end
  reply[#reply + 1] = lease.owner
  reply[#reply + 1] = lease.ends
  reply[#reply + 1] = lease.epoch
  reply[#reply + 1] = standing
end
return reply
