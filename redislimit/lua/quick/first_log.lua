-- No usual log is longer than the part that is read first, which is its head and 100 spendings. For a limit of few units, that is 33:
-- as many spendings as count, 16 past ones, and the newest.
local id, x, y, z = unpack('>c${ID_SIZE}I7I7I7', payload, pos + $CHARGE_ID)
local part, upto = $FIRST_PART, '$FIRST_END'
if y <= $FEW_UNITS then part, upto = $FEW_PART, '$FEW_END' end
local raw = redis.pcall('GETRANGE', key, '0', upto)
