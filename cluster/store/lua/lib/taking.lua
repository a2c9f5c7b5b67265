-- include: queues
-- Takes entries out of the streams of the partition `P`, for the scripts that hand tasks out.
local function next_entry(stream)
  local reply = redis.pcall('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', 1, 'STREAMS', stream, '>')
  if reply and reply.err then
    if string.find(reply.err, 'NOGROUP', 1, true) ~= 1 or redis.call('EXISTS', stream) == 0 then
      return nil
    end
    -- A lost group starts over: entries of leased tasks come by again and are recognised.
    redis.call('XGROUP', 'CREATE', stream, GROUP, '0')
    reply = redis.call('XREADGROUP', 'GROUP', GROUP, CONSUMER, 'COUNT', 1, 'STREAMS', stream, '>')
  end
  return reply and reply[1] and reply[1][2][1]
end

-- Task and entry of the next new work in a queue, which counts as delivered from now on; or nil.
local function take_new(queue)
  local stream = P .. ':q:' .. queue
  local read = next_entry(stream)
  if not read then
    -- Everything in the stream was delivered, so the cursor stands at its end.
    local last = redis.call('XREVRANGE', stream, '+', '-', 'COUNT', 1)[1]
    if last then
      redis.call('HSET', P .. ':cur', queue, last[1])
      cursors[P .. queue] = last[1]
    end
    return nil
  end
  redis.call('HSET', P .. ':cur', queue, read[1])
  cursors[P .. queue] = read[1]
  return read[2][2], read[1]
end

-- Sets the timer of a step that is handed out now; none is set while a step is ready. `now` was cut off, so a
-- time-out that begins here is over one millisecond later.
local function start_step_clock(timer, after, cap)
  if timer == '' then
    return
  end
  after, cap = tonumber(after), tonumber(cap or 0)
  local due = after > 0 and now + after + 1 or cap
  if cap > 0 and cap < due then
    due = cap
  end
  if due > 0 then
    arm(timer, due)
  else
    redis.call('ZREM', P .. ':timers', timer)
  end
end

-- The same for a task of the workflow plane; what its timer was set to comes back with the task.
local function start_clock(key, timer, after, cap)
  local waiting = timer ~= '' and redis.call('ZSCORE', P .. ':timers', timer)
  if waiting then
    redis.call('HSET', key, 'tr', text(tonumber(waiting)))
  end
  start_step_clock(timer, after, cap)
end
