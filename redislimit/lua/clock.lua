-- What a call asks, and the server's time, read once. The words that follow what is asked
-- are a test's: its own time, by how much keys outlive theirs, and the mark of new ones.
local ask, sec, usec = ARGV[1], ARGV[2], ARGV[3]
if not sec then
  local t = redis.call('TIME')
  sec, usec = t[1], t[2]
end
local reading = sec * 1000000 + usec
