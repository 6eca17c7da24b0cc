package pace

import (
	"time"
)

// wideEnough is the window from which on any number of requests may be in flight.
const wideEnough = 64

// narrowFor is how long after a wait the window holds, unless it is wide enough before.
// It outlives the queue for that time: those who come next may come all at once.
const narrowFor = time.Minute

// widenLocked sets how many requests may be in flight: after a refusal one, so that not
// all who wait are refused again at once, and one more with each that is served of those
// that were sent after it.
func (l *line) widenLocked(f flight, a Advice, now time.Time) {
	switch {
	case a.Refused || a.Wait > 0:
		l.narrowLocked(now)
	case a.Answered:
		l.refusals = refusals{}
		l.passLocked(f)
	}
}

func (l *line) narrowLocked(now time.Time) {
	l.window, l.narrowed, l.wideAt = 1, l.sent, now.Add(narrowFor)
	if l.until.After(now) {
		l.wideAt = l.until.Add(narrowFor)
	}
}

// passLocked widens the window for a request that was not refused.
func (l *line) passLocked(f flight) {
	if l.window > 0 && f.seq > max(l.narrowed, l.silent) {
		l.window = (l.window + 1) % wideEnough
	}
}

// passSilentLocked widens the window for requests of which nothing has come yet: a refusal
// would have come by now. So silent streams do not hold up the others one by one.
func (l *line) passSilentLocked(now time.Time) {
	if !now.Before(l.wideAt) {
		l.window = 0
	}
	if l.window == 0 {
		return
	}
	first, _ := l.findFlightLocked(l.silent + 1)
	for old := len(l.flights) - len(l.youngLocked(now)); first < old; first++ {
		if !l.flights[first].landed {
			l.passLocked(l.flights[first])
		}
		l.silent = l.flights[first].seq
	}
}

func (l *line) closeLocked(until time.Time) {
	if until.After(l.until) {
		l.until = until
	}
}

// refusals counts those that told a time, and those that told none.
type refusals struct{ timed, timeless int }

// The wait after the first refusal that tells no time, after the second in a row that tells one, and the longest of
// these. Each further refusal doubles it.
const (
	firstBackoff = time.Second
	leastBackoff = 10 * time.Millisecond
	maxBackoff   = time.Minute
)

// backOffLocked waits after a refusal, for at least as long as the server has said. A time that the server tells is
// obeyed as it is, unless a request that obeyed it is refused again: then the server's times are too short. Refusals of
// requests that were sent before the last one was received count as that one.
func (l *line) backOffLocked(seq uint64, told bool, now time.Time) {
	if seq <= l.backedAt {
		return
	}
	l.backedAt = l.sent
	wait := time.Duration(0)
	switch {
	case !told:
		wait = firstBackoff << min(l.refusals.timeless, 10)
		l.refusals.timeless++
	default:
		if l.refusals.timed > 0 {
			wait = leastBackoff << min(l.refusals.timed-1, 20)
		}
		l.refusals.timed++
	}
	l.closeLocked(now.Add(min(wait, maxBackoff)))
}
