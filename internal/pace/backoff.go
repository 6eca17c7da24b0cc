package pace

import (
	"time"
)

// backoff is the time to wait after refusals, and the number of requests that may be in flight after that.
type backoff struct {
	until    time.Time // nothing is sent before: the server's time, or longer
	refusals refusals  // in a row
	backedAt uint64    // flights.sent at the last of these

	window   int       // the number of requests that may be in flight; 0 means any number
	narrowed uint64    // flights.sent when the window was last set to one
	silent   uint64    // the window is wider already for requests up to this number: no refusal has come in time
	wideAt   time.Time // when the window ends at the latest
}

// refusals counts refusals with a time to wait, and refusals without one.
type refusals struct{ timed, timeless int }

// wideEnough is the window from which on any number of requests may be in flight.
const wideEnough = 64

// narrowFor is the time after a wait for which the window holds, unless it is wide enough before.
// It outlives the queue for that time: later requests may come all at once.
const narrowFor = time.Minute

// The wait after the first refusal without a time, after the second in a row with one, and the longest of
// these. Each further refusal doubles it.
const (
	firstBackoff = time.Second
	leastBackoff = 10 * time.Millisecond
	maxBackoff   = time.Minute
)

// refuse waits after a refusal of a request, for at least as long as the server demands, which close records. A time of the
// server is obeyed as it is, unless a request that obeyed it is refused again: then the server's times are too short.
// Refusals of requests that were sent before the last one was received count as that one.
func (b *backoff) refuse(seq uint64, timed bool, sent uint64, now time.Time) {
	if seq <= b.backedAt {
		return
	}
	b.backedAt = sent
	wait := time.Duration(0)
	switch {
	case !timed:
		wait = firstBackoff << min(b.refusals.timeless, 10)
		b.refusals.timeless++
	default:
		if b.refusals.timed > 0 {
			wait = leastBackoff << min(b.refusals.timed-1, 20)
		}
		b.refusals.timed++
	}
	b.close(now.Add(min(wait, maxBackoff)))
}

// close lets nothing be sent before an instant.
func (b *backoff) close(until time.Time) {
	if until.After(b.until) {
		b.until = until
	}
}

// narrow lets one request be in flight, so that not all waiting requests are refused again at once.
func (b *backoff) narrow(sent uint64, now time.Time) {
	b.window, b.narrowed, b.wideAt = 1, sent, now.Add(narrowFor)
	if b.until.After(now) {
		b.wideAt = b.until.Add(narrowFor)
	}
}

// serve ends the row of refusals with a request that was served.
func (b *backoff) serve(f flight) {
	b.refusals = refusals{}
	b.widen(f)
}

// widen lets one more request be in flight for each that was sent after the window was narrowed and was not refused.
func (b *backoff) widen(f flight) {
	if b.window > 0 && f.seq > max(b.narrowed, b.silent) {
		b.window = (b.window + 1) % wideEnough
	}
}

// widenForSilent widens the window for requests without an answer after the time in which a refusal
// would have come. So silent streams do not hold up the others one by one.
func (b *backoff) widenForSilent(fs *flights, now time.Time) {
	if !now.Before(b.wideAt) {
		b.window = 0
	}
	if b.window == 0 {
		return
	}
	first, _ := fs.find(b.silent + 1)
	for old := len(fs.list) - len(fs.young(now)); first < old; first++ {
		if !fs.list[first].landed {
			b.widen(fs.list[first])
		}
		b.silent = fs.list[first].seq
	}
}

// holds reports whether the window is to be kept.
func (b *backoff) holds(now time.Time) bool { return b.window > 0 && now.Before(b.wideAt) }

// reset ends the wait, the row of refusals, and the window. Refusals of requests that were sent before do not count.
func (b *backoff) reset(sent uint64) {
	b.until, b.window = time.Time{}, 0
	b.refusals, b.backedAt = refusals{}, sent
}
