-- include: base
-- Checks all limits of a queue and takes tickets for as many tasks as they allow, or none.
--
-- KEYS[1]  the admission terms of the namespace (routes the script)
-- ARGV[1]  start of the namespace's admission keys   ARGV[2]  kind         ARGV[3]  encoded queue
-- ARGV[4]  version of the limits the caller knows     ARGV[5]  the calling node
-- ARGV[6]  encoded budget group or ""                 ARGV[7]  ms by which clocks may differ
-- ARGV[8..12]  limits in gate order, 0 for none: leases of queue and namespace, dispatches per
--              minute of queue, namespace and group
-- ARGV[13] tickets wanted (0: only look)              ARGV[14] 1 if a lease limit makes the caller ask
-- ARGV[15..] names for the tickets; without names dispatches are counted and no ticket is kept
--
-- Returns "STALE" when the limits have changed, "CLOSED" when tickets were named but the leases of
-- this kind are not counted yet, else
--   [now, granted, claim by, refused, ms to the next minute, counts in the order of the limits]
-- with refused the place in gate order of the first limit that is used up now, or 0. A claim that
-- comes later than `claim by` must not be made: the minute is over, or the ticket may be audited.
-- A refusal is remembered for 10 s: when room appears the node is told.
-- oom: refuse
local A, kind, queue, node, group = ARGV[1], ARGV[2], ARGV[3], ARGV[5], ARGV[6]
local skew, wanted = tonumber(ARGV[7]), tonumber(ARGV[13])
local CLAIM_WITHIN = 5000
local REMEMBER_REFUSALS = 10000
local KEEP_MINUTES = 120000
local NOTE_USE_EVERY = 10000

local terms = redis.call('HMGET', A .. ':terms', 'v', 'on:' .. kind, 'used:' .. kind)
if (terms[1] or '0') ~= ARGV[4] then
  return 'STALE'
end
local named = #ARGV > 14
if named and not terms[2] then
  return 'CLOSED'
end

local minute = math.floor(now / 60000)
local bucket = A .. ':m:' .. kind .. ':' .. text(minute)
local left = (minute + 1) * 60000 - now
local counted = redis.call('HMGET', bucket, 'q:' .. queue, 'n', 'g:' .. group)
local counts = {
  redis.call('ZCARD', A .. ':q:' .. kind .. ':' .. queue),
  redis.call('ZCARD', A .. ':t:' .. kind),
  tonumber(counted[1] or 0), tonumber(counted[2] or 0), tonumber(counted[3] or 0),
}
local room, by_minute = wanted, false
for i = 1, 5 do
  local limit = tonumber(ARGV[7 + i])
  if limit > 0 then
    room = math.min(room, math.max(0, limit - counts[i]))
    by_minute = by_minute or i > 2
  end
end

local claim_by = now + CLAIM_WITHIN - skew
if by_minute then
  claim_by = math.min(claim_by, now + left - 1 - skew)
  if claim_by <= now then
    room = 0
  end
end

local by_namespace, by_group = tonumber(ARGV[11]) > 0, tonumber(ARGV[12]) > 0
if room > 0 then
  redis.call('SETRANGE', A .. ':touch', 0, '')
  if named and ARGV[14] == '1' and now - tonumber(terms[3] or 0) > NOTE_USE_EVERY then
    redis.call('HSET', A .. ':terms', 'used:' .. kind, text(now))
  end
  for i = 1, named and room or 0 do
    local ticket = ARGV[14 + i]
    redis.call('ZADD', A .. ':t:' .. kind, text(now), ticket)
    redis.call('ZADD', A .. ':q:' .. kind .. ':' .. queue, text(now), ticket)
    redis.call('HSET', A .. ':i:' .. kind, ticket, table.concat({
      text(now), by_minute and text(minute) or '-', queue, by_namespace and 'n' or '-', by_group and group or '',
    }, ' '))
  end
  counts[1], counts[2] = counts[1] + (named and room or 0), counts[2] + (named and room or 0)
  if by_minute then
    counts[3] = redis.call('HINCRBY', bucket, 'q:' .. queue, room)
    counts[4] = by_namespace and redis.call('HINCRBY', bucket, 'n', room) or counts[4]
    counts[5] = by_group and redis.call('HINCRBY', bucket, 'g:' .. group, room) or counts[5]
    redis.call('PEXPIRE', bucket, KEEP_MINUTES)
  end
end

local refused = 0
for i = 5, 1, -1 do
  local limit = tonumber(ARGV[7 + i])
  if limit > 0 and counts[i] >= limit then
    refused = i
  end
end
if room < wanted and refused > 0 then
  local place = ({ 'q:' .. queue, 'n', 'q:' .. queue, 'n', 'g:' .. group })[refused]
  local want = A .. ':w:' .. kind .. ':' .. place
  redis.pcall('ZADD', want, text(now), node .. ' ' .. queue)
  redis.pcall('PEXPIRE', want, REMEMBER_REFUSALS)
end
return { text(now), room, text(claim_by), refused, left, counts }
