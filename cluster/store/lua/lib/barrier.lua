-- include: base
-- The pause after the store was restarted or replaced (E5).
--
-- `<base>:gen` names the server that a partition hands out on (g) and from when on (at, ms). A server that
-- is not the named one may lack the last hand-outs, so it makes none before the nodes had time to say
-- what they run (`reassert.lua`).
local ANY_SERVER = string.rep('-', 40)

-- "" when the partition may hand out; "PAUSED" before its time; "UNKNOWN" for a server it does not know.
local function barrier(base, generation)
  if generation == ANY_SERVER then
    return ''
  end
  local r = redis.call('HMGET', base .. ':gen', 'g', 'at')
  if not r[1] then
    redis.call('HSET', base .. ':gen', 'g', generation, 'at', '0')
    return ''
  end
  if r[1] ~= generation then
    return 'UNKNOWN'
  end
  return now < tonumber(r[2]) and 'PAUSED' or ''
end
