-- The sum of a key's open estimates, for calls that follow the key's spending. A key of its
-- own, behind the call's keys, stores it: gen 3, window 7, sum 7. The sum is 0 for another
-- generation of the key, and once the window of a fixed window or calendar has ended.
local SUM = '>I3I7I7'

local function windowOf(s)
  if s.kind == FIXED then return s.at end
  if s.kind == CALENDAR then return s.m end
  return 0
end

local function sumOf(key, s)
  if not s or not s.kind then return 0 end
  local raw = redis.pcall('GET', key)
  if type(raw) ~= 'string' or #raw ~= 17 then return 0 end
  local gen, window, sum = unpack(SUM, raw)
  if gen ~= s.gen or window ~= windowOf(s) then return 0 end
  return sum
end

-- setSum stores a sum for as long as the key lives.
local function setSum(key, s, sum)
  if sum <= 0 then return redis.call('DEL', key) end
  local life = max(1, (divide(s.expiry * 1000000 - reading + 999, 1000)))
  redis.call('SET', key, pack(SUM, s.gen, windowOf(s), min(sum, TOP)), 'PX', life)
end
