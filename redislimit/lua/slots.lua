-- A semaphore's key is four sorted sets: each slot that is taken, by when it ends; each permit, by when it
-- was taken; each caller in line, by the order in which they came; and each of these, by when its place ends.
-- A slot is the permit's id and a number, a caller in line the id and how many slots it wants.
local slots, since, line, places = KEYS[1], KEYS[2], KEYS[3], KEYS[4]
local grace = tonumber(argv[4] or 0)
local pack, unpack, call = struct.pack, struct.unpack, redis.call

-- keep makes a set live until an instant, at least.
local function keep(key, instant)
  local ttl = math.ceil((instant - reading + grace) / 1000)
  if call('PTTL', key) < ttl then call('PEXPIRE', key, ttl) end
end

-- add adds to a set that then lives until an instant, at least. What an ACL may forbid comes first: a set without a
-- time to live would stay.
local function add(key, instant, ...)
  keep(key, instant)
  call('ZADD', key, ...)
  keep(key, instant)
end

-- tidy removes what has ended.
local function tidy()
  local ended = call('ZRANGEBYSCORE', slots, '-inf', reading)
  for i = 1, #ended do call('ZREM', since, string.sub(ended[i], 1, $ID_LENGTH)) end
  if #ended > 0 then call('ZREMRANGEBYSCORE', slots, '-inf', reading) end
  local gone = call('ZRANGEBYSCORE', places, '-inf', reading)
  for i = 1, #gone do call('ZREM', line, gone[i]) end
  if #gone > 0 then call('ZREMRANGEBYSCORE', places, '-inf', reading) end
end

local function wanted(caller) return tonumber(string.sub(caller, $ID_LENGTH + 2)) end
