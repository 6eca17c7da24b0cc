-- What is noted behind a log denies, too.
if length > $WIDE_SIZE and math.fmod(length - $WIDE_SIZE, $RECORD_SIZE) == $NOTE_LOG then
  --NOTED
  break
end
