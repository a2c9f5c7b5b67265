-- include: base
-- One partition's part of a list of schedules, newest first. Reads only.
--
-- KEYS[1]  schedules of the namespace by creation time
-- ARGV[1]  common start of the keys of the namespace's schedules in the partition
-- ARGV[2]  ms and ARGV[3] member of the last row seen, or "" and "" for the first page
-- ARGV[4]  rows wanted     ARGV[5]  most schedules to look at
-- ARGV[6]  status or ""    ARGV[7]  workflow type or ""    ARGV[8]  text that the id contains, or ""
--
-- Returns [rows, more, last ms, last member]: rows as [member, created ms, version, definition, state];
-- `more` 1 when schedules were left unseen, which begin after the last one looked at.
-- oom: allow (reads only)
local wanted, budget = tonumber(ARGV[4]), tonumber(ARGV[5])
local BATCH = 100

local rows, looked = {}, 0
local last_ms, last_member = ARGV[2], ARGV[3]
local start = last_ms == '' and '+inf' or last_ms
local offset = 0
while looked < budget and #rows < wanted do
  local batch = redis.call('ZRANGE', KEYS[1], start, '-inf', 'BYSCORE', 'REV', 'LIMIT', offset, BATCH, 'WITHSCORES')
  if #batch == 0 then
    return { rows, 0, last_ms, last_member }
  end
  for i = 1, #batch, 2 do
    local member, ms = batch[i], text(tonumber(batch[i + 1]))
    -- Of equal times the greater member comes first, so those not below the last row were seen.
    if not (ms == ARGV[2] and member >= ARGV[3]) then
      looked = looked + 1
      local r = redis.call('HMGET', ARGV[1] .. member, 'v', 'd', 's', 'st', 'type', 'id')
      local fits = r[1] and (ARGV[6] == '' or r[4] == ARGV[6]) and (ARGV[7] == '' or r[5] == ARGV[7])
        and (ARGV[8] == '' or string.find(r[6], ARGV[8], 1, true))
      if fits then
        rows[#rows + 1] = { member, ms, r[1], r[2], r[3] }
      end
      last_ms, last_member = ms, member
      if #rows == wanted or looked == budget then
        return { rows, 1, last_ms, last_member }
      end
    end
  end
  offset = offset + #batch / 2
end
return { rows, 1, last_ms, last_member }
