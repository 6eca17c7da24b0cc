-- The part read first has 16 bookings, and all that a state may have before them. Its
-- end is a text: to write a number as a text takes Redis as long as to read the part.
local part, raw = $HEAD_PART, redis.pcall('GETRANGE', key, '0', '$HEAD_END')
