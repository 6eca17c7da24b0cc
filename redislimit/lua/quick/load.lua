-- The value may be empty, which is none of this package's.
--FIRST
if raw == '' then raw = redis.pcall('GET', key) end
local length = raw and #raw or 0 -- the table of an error has none
local noted, first, rest = false, 0, $STATE_SIZE + 1
if length > $WIDE_SIZE then
  -- Behind its first part a state has what only some states have, and last what a denial has noted. That denies again, or is left out.
  if length == part then length = redis.call('STRLEN', key) end
  first = unpack('B', raw)
  if first < $TOKEN then first, rest = first + $ASIDE, rest + $ASIDE_SIZE end
  if first == $OPEN_KIND then
    local opens = string.byte(raw, rest) or 0
    if opens > $OLDER then opens, rest = opens - $OLDER, rest + 1 end
    first, rest = $TOKEN, rest + 1 + 14 * opens
  elseif first >= $LOG then
    rest = rest + 7
  end
  local size, left = $BOOKING_SIZE, $NOTE_BOOKED
  if first == $LOG then size, left = $RECORD_SIZE, $NOTE_LOG end
  if length + 1 - rest >= $NOTE_SIZE and (length + 1 - rest) % size == left then
    --NOTED
    noted, length = true, length - $NOTE_SIZE
    if length < #raw then raw = string.sub(raw, 1, length) end
  end
end
