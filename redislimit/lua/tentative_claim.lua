-- Makes a tentative place in a queue a lasting one, unless its instant has
-- passed. The place may have moved. The reply is its record, or nothing.
for _, record in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, 1000)) do
  if string.sub(record, 1, 12) == payload then
    redis.call('ZREM', KEYS[1], record)
    return struct.unpack('>I7', record, 13) >= reading and record or ''
  end
end
return ''
