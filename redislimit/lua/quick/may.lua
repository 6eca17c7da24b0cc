-- Logs are read and written by commands that an ACL may allow one by one. None of the decisions
-- may be written if another one of the call could fail for that.
local may = redis.acl_check_cmd
if may and not (may('strlen', KEYS[1]) and may('set', KEYS[1], '') and may('append', KEYS[1], '')) then
  return redis.error_reply("NOPERM this user has no permissions to run 'strlen', 'set' or 'append'")
end
