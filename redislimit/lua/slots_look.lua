local after = '(' .. string.format('%.0f', reading)
local taken, waiting = call('ZCOUNT', slots, after, '+inf'), call('ZCOUNT', places, after, '+inf')
local oldest = 0
local i = 0
while taken > 0 do -- the first permit that has not ended
  local permit = call('ZRANGE', since, i, i, 'WITHSCORES')
  if not permit[1] then break end
  local ends = call('ZSCORE', slots, permit[1] .. ':1')
  if ends and tonumber(ends) > reading then
    oldest = math.max(0, reading - tonumber(permit[2]))
    break
  end
  i = i + 1
end
return pack('>I7I7I7', taken, waiting, oldest)
