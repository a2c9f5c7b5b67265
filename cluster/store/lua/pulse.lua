-- include: base
-- What some task queues of a namespace hold in one partition, summed up. Reads only.
--
-- KEYS[1]  any key of the partition
-- ARGV[1]  start of the partition's keys   ARGV[2]  encoded namespace
-- ARGV[3]  msgpack list of encoded task queues      ARGV[4]  kinds, as one string
-- ARGV[5]  "runs": count the namespace's runs, too
--
-- Returns [ready, leased, oldest ready time (ms) or "", added, handed out, runs, closed, archived, failing,
-- flows, closed flows]; "added" and "handed out" are of the slots of 10 s that began in the last minute.
-- oom: allow (reads only)
P = ARGV[1]
local namespace, names = ARGV[2], cmsgpack.unpack(ARGV[3])
local SLOT, WINDOW = 10000, 60000
local ready, leased, oldest = 0, 0, nil

local function consider(ready_ms)
  if ready_ms and (not oldest or ready_ms < oldest) then
    oldest = ready_ms
  end
end

local function look(queue)
  local entries = redis.call('XLEN', P .. ':q:' .. queue)
  local back = redis.call('ZRANGE', P .. ':b:' .. queue, 0, 0, 'WITHSCORES')
  if back[2] then
    ready = ready + redis.call('ZCARD', P .. ':b:' .. queue)
    consider(tonumber(back[2]))
  end
  if entries > 0 then
    local pending = redis.pcall('XPENDING', P .. ':q:' .. queue, 'g')
    local waiting = entries - (pending.err and 0 or pending[1])
    if waiting > 0 then
      ready = ready + waiting
      local cursor = redis.call('HGET', P .. ':cur', queue)
      local start = cursor and ('(' .. cursor) or '-'
      local entry = redis.call('XRANGE', P .. ':q:' .. queue, start, '+', 'COUNT', 1)[1]
      consider(entry and tonumber(entry[2][4]))
    end
  end
end

local added, handed_out = {}, {}
for _, name in ipairs(names) do
  for kind in string.gmatch(ARGV[4], '.') do
    local task_queue = kind .. ':' .. namespace .. ':' .. name
    added[#added + 1], handed_out[#handed_out + 1] = 'a:' .. task_queue, 'd:' .. task_queue
    leased = leased + redis.call('ZCARD', P .. ':lq:' .. task_queue)
    for _, member in ipairs(redis.call('SMEMBERS', P .. ':ty:' .. task_queue)) do
      look(task_queue .. ':' .. member)
    end
  end
end

local function sum(fields)
  local total, slot = 0, math.floor(now / SLOT)
  while #fields > 0 and slot * SLOT > now - WINDOW do
    for _, count in ipairs(redis.call('HMGET', P .. ':rate:' .. text(slot), unpack(fields))) do
      total = total + tonumber(count or 0)
    end
    slot = slot - 1
  end
  return total
end

local answer = { ready, leased, oldest and text(oldest) or '', sum(added), sum(handed_out) }
for _, family in ipairs({ 'runs', 'closed', 'archived', 'failing', 'flows', 'fclosed' }) do
  answer[#answer + 1] = ARGV[5] == 'runs' and redis.call('ZCARD', P .. ':' .. family .. ':' .. namespace) or 0
end
return answer
