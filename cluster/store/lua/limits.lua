-- Replaces the limits of a namespace that were set at run time, and tells all nodes.
--
-- KEYS[1]  the admission terms of the namespace
-- ARGV[1]  expected version   ARGV[2]  new document, "" for none   ARGV[3]  channel   ARGV[4]  message
--
-- Returns {1, new version}, also when the document is this one already under the next version, so a
-- repeated call is harmless; {0, current version} when somebody else was faster.
-- oom: refuse
local r = redis.call('HMGET', KEYS[1], 'v', 'doc')
local version, document = tonumber(r[1] or 0), r[2] or ''
if version == tonumber(ARGV[1]) + 1 and document == ARGV[2] then
  return { 1, version }
end
if version ~= tonumber(ARGV[1]) then
  return { 0, version }
end
redis.call('HSET', KEYS[1], 'v', version + 1, 'doc', ARGV[2])
redis.call('PUBLISH', ARGV[3], ARGV[4])
return { 1, version + 1 }
