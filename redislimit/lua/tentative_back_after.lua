if string.byte(reply) ~= 1 then
  redis.call('ZADD', ALL[2], (unpack('>I7', record, 13)), record)
  redis.pcall('PEXPIRE', ALL[2], $TENTATIVE_STAYS, 'NX')
end
return reply
