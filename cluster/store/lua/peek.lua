-- include: base
-- What a node must know about partitions once a second: heads of the queues its polls wait on,
-- and how overdue the housekeeping is. Reads only.
--
-- KEYS[1]  any key of the first partition (routes the script)
-- ARGV[1]  msgpack [bases, heads]: starts of the keys of the partitions; heads to look at
--
-- Returns [now, partitions], one entry per base:
--   [timer due or "-1", lease due or "-1", items of chunked work, heads],
--   heads: [heads index from 0, complete, type, ready, ...] for each that has any
-- oom: allow (reads only)
local KNOWN_HEADS = 64
local bases, heads_names = unpack(cmsgpack.unpack(ARGV[1]))

local replies = {}
for i, base in ipairs(bases) do
  local timer = redis.call('ZRANGE', base .. ':timers', 0, 0, 'WITHSCORES')
  local lease = redis.call('ZRANGE', base .. ':leases', 0, 0, 'WITHSCORES')
  local found = {}
  for h, heads in ipairs(heads_names) do
    local row = redis.call('ZRANGE', base .. ':h:' .. heads, 0, KNOWN_HEADS - 1, 'WITHSCORES')
    if #row > 0 then
      table.insert(row, 1, #row < 2 * KNOWN_HEADS and 1 or 0)
      table.insert(row, 1, h - 1)
      found[#found + 1] = row
    end
  end
  replies[i] = { timer[2] or '-1', lease[2] or '-1', redis.call('LLEN', base .. ':work'), found }
end
return { text(now), replies }
