local same, most, cost, from, till, as, reply = unpack('>c${ID_SIZE}I7I7I7I7I7c$NOTE_REPLY', tail, #tail - $NOTE_SIZE + 1)
local figures, _, _, _, _, _, wanted, ahead, capacity, since = unpack('>c${ID_SIZE}I7I7I7I7I7I7I7I7I7', payload, pos + $CHARGE_ID)
if same == figures and most == capacity and wanted > 0 and (cost == wanted or cost > $MOST and wanted >= cost - $MOST)
  and (ahead == 0 or ahead >= $MOST and unpack('B', figures) == $LEAKY)
  and since > 0 and as <= since and since <= from and from <= reading and reading < till then
  return '=' .. sec .. '.' .. usec .. '=' .. reply
end
