-- The part read first has 33 spendings: for a limit of few units all that count, 16 past ones, and the newest.
local id, x, y, z = unpack('>c${ID_SIZE}I7I7I7', payload, pos + $CHARGE_ID)
local part, raw = $FIRST_PART, redis.pcall('GETRANGE', key, '0', '$FIRST_END')
