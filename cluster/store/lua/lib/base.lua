-- Clock, number rendering and the partition a script works on.
-- `P` is the common start of all keys of that partition, `PREFIX` the prefix of the cluster.
local P, PREFIX
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)

-- Milliseconds since the epoch do not survive tostring (1.79e+12).
local function text(number)
  return string.format('%.0f', number)
end

local function partition_number()
  return string.match(P, '{p(%d+)')
end
