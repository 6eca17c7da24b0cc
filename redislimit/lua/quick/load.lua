-- The value may be empty. Then it is none of this package's.
--FIRST
if raw == '' then raw = redis.pcall('GET', key) end
-- The tail ends with the last booking or spending. A long state's
-- tail is read, and its length stays unknown: few calls need it.
local length, tail = raw and #raw or 0, raw -- an error's table has no length
local long, noted, first, rest = length == part, false, 0, $STATE_SIZE + 1
if length > $WIDE_SIZE then
  -- Behind its first part a state has the fields of some states only,
  -- and last a denial's note. The note denies again, or is left out.
  first = string.byte(raw)
  if first < $TOKEN then first, rest = first + $ASIDE, rest + $ASIDE_SIZE end
  if first == $OPEN_KIND then
    local opens = string.byte(raw, rest) or 0
    if opens > $OLDER then opens, rest = opens - $OLDER, rest + 1 end
    first, rest = $TOKEN, rest + 1 + 14 * opens
  elseif first >= $LOG then
    rest = rest + 7
  end
  local size, left, ends = $BOOKING_SIZE, $NOTE_BOOKED, true
  if first == $LOG then size, left = $RECORD_SIZE, $NOTE_LOG end
  if long then
    -- A note begins with a kind. In its place, a state without a note has the second byte of a cost, a capacity
    -- or a sum. This byte shows of most states that they have no note. For the others the length shows it.
    tail = redis.call('GETRANGE', key, '-$LAST_PART', '-1')
    ends = string.byte(tail, $LAST_NOTE) >= $TOKEN
    if ends then length = redis.call('STRLEN', key) end
  end
  if ends and length + 1 - rest >= $NOTE_SIZE and (length + 1 - rest) % size == left then
    --NOTED
    noted, length = true, length - $NOTE_SIZE
    if length <= #raw then
      raw = string.sub(raw, 1, length)
      tail, long = raw, false
    else
      tail = string.sub(tail, 1, $LAST_NOTE - 1)
    end
  end
end
