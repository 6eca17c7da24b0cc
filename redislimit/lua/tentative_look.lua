-- The records of a key's tentative bookings, at most 1,000 of them.
return table.concat(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', '+inf', 'LIMIT', 0, 1000))
