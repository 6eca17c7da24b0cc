redis.call('DEL', KEYS[1])
return '+'
