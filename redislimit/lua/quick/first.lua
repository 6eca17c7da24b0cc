-- The part read first has 16 bookings, and all that a state may have before them. The part's
-- end is passed as a text: to convert a number takes Redis as long as to read the part.
local part, raw = $HEAD_PART, redis.pcall('GETRANGE', key, '0', '$HEAD_END')
