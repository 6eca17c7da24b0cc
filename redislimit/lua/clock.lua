-- The call's requests, and the server's time, read once. Tests add three words after
-- the requests: their own time, how much longer keys live, and the mark of new keys.
local redis, argv = redis, ARGV
local payload, sec, usec = argv[1], argv[2]
if sec then
  usec = argv[3]
else
  local t = redis.call('TIME')
  sec, usec = t[1], t[2]
end
local reading = sec * 1000000 + usec
