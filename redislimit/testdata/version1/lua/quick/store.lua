if life > 0 then
  redis.call('SET', key, value, 'PX', life)
elseif life == 0 then
  redis.call('SET', key, value, 'KEEPTTL')
else -- more of a log
  redis.call('APPEND', key, value)
end
