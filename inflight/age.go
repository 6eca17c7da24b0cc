package inflight

import "time"

// age tells how long the oldest permit is held, without a reading of the clock for each
// permit. When somebody asks and no older permits are known, all that are in flight at
// that instant become the old ones. Their age counts from then until the last of
// them is released.
type age struct {
	gen   uint32 // of the permits that are not old
	old   int    // units of permits of earlier generations
	since time.Duration
}

// released notes that a permit has come back.
func (a *age) released(n int, gen uint32) {
	if gen != a.gen {
		a.old -= n
	}
}

// oldest returns for how long, at least, the oldest permit has been held.
func (a *age) oldest(inFlight int, now time.Duration) time.Duration {
	if a.old == 0 && inFlight > 0 {
		a.old, a.since = inFlight, now
		a.gen++
	}
	if a.old == 0 {
		return 0
	}
	return max(0, now-a.since)
}
