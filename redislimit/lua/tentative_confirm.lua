-- Makes a tentative booking a lasting one.
return tostring(redis.call('ZREM', KEYS[1], payload))
