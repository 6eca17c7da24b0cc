-- Gives back a silent process's tentative booking. Its record stands before the settlement.
local ALL, KEYS = KEYS, { KEYS[1] }
local record = string.sub(payload, 1, $TENTATIVE_SIZE)
payload = string.sub(payload, $TENTATIVE_SIZE + 1)
if redis.call('ZREM', ALL[2], record) == 0 then return '\0\0' end
