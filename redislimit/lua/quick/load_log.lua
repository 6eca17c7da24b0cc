-- Of a log no more is read at first than its head and 100 spendings. That may be nothing also
-- because the value is empty, which no log is.
local raw = redis.pcall('GETRANGE', key, 0, $FIRST_PART - 1)
if raw == '' then raw = redis.pcall('GET', key) end
local length = raw and #raw or 0
if length == $FIRST_PART then length = redis.call('STRLEN', key) end
