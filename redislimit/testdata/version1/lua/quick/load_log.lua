-- Of a log no more is read at first than its head and 100 spendings. That may be nothing also
-- because the value is empty, which no log is.
local raw = redis.pcall('GETRANGE', key, 0, 2150)
if raw == '' then raw = redis.pcall('GET', key) end
local length = raw and #raw or 0
if length == 2151 then length = redis.call('STRLEN', key) end
