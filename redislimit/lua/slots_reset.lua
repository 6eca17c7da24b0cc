-- Revoked requests stay revoked: a call for one of them may still arrive.
local members = redis.pcall('ZRANGEBYSCORE', key, '(' .. string.format('%.0f', reading), '+inf', 'WITHSCORES')
call('DEL', key)
for i = 1, members.err and 0 or #members, 2 do
  if sub(members[i], 1, 1) == 'x' then add(math.min(tonumber(members[i + 1]), reading + $REVOKED_FOR), members[i]) end
end
close()
return '+'
