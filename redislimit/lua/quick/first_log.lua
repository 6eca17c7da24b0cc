-- No usual log is longer than the part that is read first, which is its head and 100 spendings.
local part, raw = $FIRST_PART, redis.pcall('GETRANGE', key, '0', '$FIRST_END')
