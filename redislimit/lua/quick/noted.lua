local note = length <= #raw and string.sub(raw, -$NOTE_SIZE) or redis.call('GETRANGE', key, -$NOTE_SIZE, -1)
local same, most, cost, from, till, as = unpack('>c${ID_SIZE}I7I7I7I7I7', note)
local figures = string.sub(payload, pos + $CHARGE_ID, pos + $CHARGE_ID + $ID_SIZE - 1)
local wanted, ahead, capacity, since = unpack('>I7I7I7I7', payload, pos + $CHARGE_COST)
if same == figures and most == capacity and wanted > 0 and (cost == wanted or cost > $MOST and wanted >= cost - $MOST)
  and (ahead == 0 or ahead >= $MOST and string.byte(figures) == $LEAKY)
  and since > 0 and as <= since and since <= from and from <= reading and reading < till then
  local digest = string.sub(note, $NOTE_DIGEST, $NOTE_DIGEST + 3) .. struct.pack('>I7', reading) .. string.sub(note, $NOTE_DIGEST + 4, $NOTE_LOOSE - 1)
  return struct.pack('>BI7B', 0, reading, 0) .. digest .. (string.byte(note, $NOTE_LOOSE) == 1 and string.sub(note, $NOTE_LOOSE) or '')
end
