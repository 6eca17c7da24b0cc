-- The part that is read first has 16 bookings, and what else a state may have. Its end is a text: to write a number as a text takes Redis
-- as long as to read the part.
local part, raw = $HEAD_PART, redis.pcall('GETRANGE', key, '0', '$HEAD_END')
