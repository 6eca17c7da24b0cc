-- A tentative place in a queue, which may have moved, becomes a lasting one, unless its instant has passed. The reply is its record, or nothing.
for _, record in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, 1000)) do
  if string.sub(record, 1, 12) == payload then
    redis.call('ZREM', KEYS[1], record)
    return struct.unpack('>I7', record, 13) >= reading and record or ''
  end
end
return ''
