local raw = redis.pcall('GET', key)
