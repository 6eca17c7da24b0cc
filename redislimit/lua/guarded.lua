-- Checks whether this server refuses another server's key.
local answer = redis.pcall('GET', KEYS[2])
local text = type(answer) == 'table' and answer.err or ''
return string.find(text, 'non local', 1, true) and 1 or 0
