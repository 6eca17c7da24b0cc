-- A sorted set has two members for each process with tentative bookings: "b" and the process, with
-- the instant until which it may be silent, and "u" and the process, with minus the instant until
-- which its bookings can have records. A call begins with the operation: a process's beat, with the
-- time until the instant of its last booking; its end; or a look. It returns the silent processes.
local op, process = string.sub(payload, 1, 1), string.sub(payload, 2, 9)
if op == 'e' then
  redis.call('ZREM', KEYS[1], 'b' .. process, 'u' .. process)
  return ''
end
if op == 'b' then
  local left = struct.unpack('>I7', payload, 10) + $TENTATIVE_STAYS * 1000
  redis.call('ZADD', KEYS[1], reading + $BEATS_HOLD, 'b' .. process, -reading - left, 'u' .. process)
  if redis.call('PEXPIRE', KEYS[1], math.ceil(left / 1000), 'NX') == 0 then redis.call('PEXPIRE', KEYS[1], math.ceil(left / 1000), 'GT') end
end
local silent = {}
for _, member in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], 0, reading)) do
  local name = string.sub(member, 2)
  if -tonumber(redis.call('ZSCORE', KEYS[1], 'u' .. name) or 0) >= reading then
    silent[#silent + 1] = name
  elseif op == 'b' then
    redis.call('ZREM', KEYS[1], member, 'u' .. name)
  end
end
return table.concat(silent)
