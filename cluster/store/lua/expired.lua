-- include: base
-- Closed runs of some namespaces whose retention is over, in one partition. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys
-- ARGV[2]  msgpack list of [encoded namespace, latest close time in ms (exclusive)]
-- ARGV[3]  most runs to return per namespace
-- ARGV[4]  closed (runs of workflows) or fclosed (of flows)
--
-- Returns [namespace index from 0, run id, run id, ...] for each namespace that has any.
-- oom: allow (reads only)
P = ARGV[1]
local found = {}
for index, wanted in ipairs(cmsgpack.unpack(ARGV[2])) do
  local runs = redis.call('ZRANGE', P .. ':' .. ARGV[4] .. ':' .. wanted[1], '-inf', '(' .. text(wanted[2]), 'BYSCORE',
    'LIMIT', 0, ARGV[3])
  if #runs > 0 then
    table.insert(runs, 1, index - 1)
    found[#found + 1] = runs
  end
end
return found
