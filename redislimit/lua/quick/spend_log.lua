-- A spending is appended, unless a note stands behind the log. Past spendings are dropped once they are more than half.
local record = struct.pack('>I7I7I7', at, sum + x, now)
needed = at + z
if raw and not noted and expiry * 1000000 >= needed and (gone < 16 or gone < size / 2) and newest ~= at then
  value, life = record, -1
else
  local kept = ''
  if raw then
    if newest == at then size = size - 1 end
    if length <= #raw then
      kept = string.sub(raw, $WIDE_SIZE + 1 + $RECORD_SIZE * gone, $WIDE_SIZE + $RECORD_SIZE * size)
    elseif size > gone then
      kept = redis.call('GETRANGE', key, $WIDE_SIZE + $RECORD_SIZE * gone, $WIDE_SIZE - 1 + $RECORD_SIZE * size)
    end
  end
  life = 0
  if expiry * 1000000 < needed then
    local ttl = 2 * (needed - reading) + (argv[4] or 0)
    life = math.ceil(ttl / 1000)
    expiry = math.min(math.floor((reading + ttl) / 1000000), $MAX_EXPIRY)
  end
  value = struct.pack('>c${ID_SIZE}I7I7I7I3BI4I7', id, now, 0, 0, gen, changes, expiry, before) .. kept .. record
end
