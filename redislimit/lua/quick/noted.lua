local note, begins = raw, length - $NOTE_SIZE + 1
if length > #raw then note, begins = redis.call('GETRANGE', key, '-$NOTE_SIZE', '-1'), 1 end
local same, most, cost, from, till, as, reply = unpack('>c${ID_SIZE}I7I7I7I7I7c$NOTE_REPLY', note, begins)
local figures, _, _, _, _, _, wanted, ahead, capacity, since = unpack('>c${ID_SIZE}I7I7I7I7I7I7I7I7I7', payload, pos + $CHARGE_ID)
if same == figures and most == capacity and wanted > 0 and (cost == wanted or cost > $MOST and wanted >= cost - $MOST)
  and (ahead == 0 or ahead >= $MOST and unpack('B', figures) == $LEAKY)
  and since > 0 and as <= since and since <= from and from <= reading and reading < till then
  return '=' .. sec .. '.' .. usec .. '=' .. reply
end
