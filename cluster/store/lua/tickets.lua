-- include: base
-- Tickets that are old enough to be audited, oldest first. Reads only.
--
-- KEYS[1]  the admission terms of the namespace (routes the script)
-- ARGV[1]  start of the namespace's admission keys   ARGV[2]  kind
-- ARGV[3]  ms that a ticket must be old
-- ARGV[4]  ms and ARGV[5] name of the last one seen, "-inf" and "" at first
-- ARGV[6]  most tickets to return
--
-- Returns [ms, ticket, record, ...]; a record is "" when the ticket has none.
-- oom: allow (reads only)
local A, kind, limit = ARGV[1], ARGV[2], tonumber(ARGV[6])
local rows, offset = {}, 0
while #rows < 3 * limit do
  local batch = redis.call('ZRANGE', A .. ':t:' .. kind, ARGV[4], text(now - tonumber(ARGV[3])), 'BYSCORE',
    'LIMIT', offset, limit, 'WITHSCORES')
  for i = 1, #batch, 2 do
    local ticket, granted = batch[i], text(tonumber(batch[i + 1]))
    if #rows < 3 * limit and not (granted == ARGV[4] and ticket <= ARGV[5]) then
      rows[#rows + 1] = granted
      rows[#rows + 1] = ticket
      rows[#rows + 1] = redis.call('HGET', A .. ':i:' .. kind, ticket) or ''
    end
  end
  if #batch < 2 * limit then
    break
  end
  offset = offset + limit
end
return rows
