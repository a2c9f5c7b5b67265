-- include: base
-- One partition's part of a list of flows, newest first. Reads only.
--
-- KEYS[1]  runs of flows of the namespace by start time
-- ARGV[1]  start of the partition's keys
-- ARGV[2]  ms and ARGV[3] run id of the last row seen, or "" and "" for the first page
-- ARGV[4]  rows wanted     ARGV[5]  most runs to look at
-- ARGV[6]  flow type or ""     ARGV[7]  status or ""
--
-- Returns [rows, more, last ms, last run id]: rows as [run id, started ms, info, state]; `more` 1 when
-- runs were left unseen, which begin after the last one looked at.
-- oom: allow (reads only)
P = ARGV[1]
local wanted, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local BATCH = 100

local rows, looked = {}, 0
local last_ms, last_id = ARGV[2], ARGV[3]
local start = last_ms == '' and '+inf' or last_ms
local offset = 0
while looked < budget and #rows < wanted do
  local batch = redis.call('ZRANGE', KEYS[1], start, '-inf', 'BYSCORE', 'REV', 'LIMIT', offset, BATCH, 'WITHSCORES')
  if #batch == 0 then
    return { rows, 0, last_ms, last_id }
  end
  for i = 1, #batch, 2 do
    local id, ms = batch[i], text(tonumber(batch[i + 1]))
    -- Of equal times the greater id comes first, so those not below the last row were seen.
    if not (ms == ARGV[2] and id >= ARGV[3]) then
      looked = looked + 1
      local r = redis.call('HMGET', P .. ':run:' .. id, 'i', 's', 'type', 'st')
      if r[1] and (ARGV[6] == '' or r[3] == ARGV[6]) and (ARGV[7] == '' or r[4] == ARGV[7]) then
        rows[#rows + 1] = { id, ms, r[1], r[2] }
      end
      last_ms, last_id = ms, id
      if #rows == wanted or looked == budget then
        return { rows, 1, last_ms, last_id }
      end
    end
  end
  offset = offset + #batch / 2
end
return { rows, 1, last_ms, last_id }
