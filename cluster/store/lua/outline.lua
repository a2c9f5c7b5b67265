-- Some events of a history, large ones only by their ends. Reads only.
--
-- KEYS[1]  history of a run
-- ARGV     index of the first event (from 0), of the last one, bytes up to which an event comes whole,
--          bytes of the two ends of a larger one
--
-- Returns [events there are, sizes, texts, tails]: a tail is "" where the text is whole.
-- oom: allow (reads only)
local sizes, texts, tails = {}, {}, {}
local whole, ends = tonumber(ARGV[3]), tonumber(ARGV[4])
for place, event in ipairs(redis.call('LRANGE', KEYS[1], ARGV[1], ARGV[2])) do
  local is_whole = #event <= whole
  sizes[place] = #event
  texts[place] = is_whole and event or string.sub(event, 1, ends)
  tails[place] = is_whole and '' or string.sub(event, -ends)
end
return { redis.call('LLEN', KEYS[1]), sizes, texts, tails }
