-- No usual state is longer. The value may be empty, which is none of this package's.
local raw = redis.pcall('GETRANGE', key, 0, $FIRST_PART - 1)
if raw == '' then raw = redis.pcall('GET', key) end
