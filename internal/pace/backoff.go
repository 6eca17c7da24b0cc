package pace

import (
	"time"
)

// backoff holds the wait after refusals and connection errors, and bounds the requests in flight after that wait.
type backoff struct {
	until    time.Time // nothing is sent before this instant, set by the server or by a longer back-off
	refusals refusals  // refusals in a row
	backedAt uint64    // the value of flights.sent at the last refusal
	broken   int       // connection errors in a row
	failedAt time.Time // the time of the last connection error
	brokenAt uint64    // the value of flights.sent at the last connection error

	window   int       // the maximum number of requests in flight; 0 for no maximum
	narrowed uint64    // the value of flights.sent when the window was last set to one
	silent   uint64    // the last request checked for a missing answer: see widenForSilent
	wideAt   time.Time // when the window ends at the latest; see narrowFor
}

// refusals counts refusals with a time to wait, and refusals without one.
type refusals struct{ timed, timeless int }

// wideEnough is the window that no longer bounds the requests in flight.
const wideEnough = 64

// narrowFor is how long the window lasts after a wait, unless it becomes wide enough before.
// It lasts even while the queue is empty, because later requests may come all at once.
const narrowFor = time.Minute

// firstBackoff is the wait after a first refusal without a time. leastBackoff is the wait
// after a second one in a row. Each further refusal doubles the wait, up to maxBackoff.
const (
	firstBackoff = time.Second
	leastBackoff = 10 * time.Millisecond
	maxBackoff   = time.Minute
)

// maxBroken is the maximum wait after connection errors, so that the client hardly prolongs the server's outage.
const maxBroken = 15 * time.Second

// refuse begins a wait after a refusal, and returns it: the server's time or, without one, its own.
// If a request is refused again after the server's time was obeyed, the server's times are too short,
// and refuse closes the line for longer. gap is the time between two requests if a pace was measured,
// else 0. With a gap, the wait after the first refusal without a time is at most twice the gap. If a
// request sent before the last refusal's arrival is refused, too, the two refusals count as one.
func (b *backoff) refuse(seq uint64, a Advice, sent uint64, gap time.Duration, now time.Time) (wait time.Duration, counts bool) {
	if seq <= b.backedAt {
		return 0, false
	}
	b.backedAt = sent
	wait = a.Wait
	for _, budget := range a.Budgets {
		if budget.Left == 0 && now.Before(budget.Until) {
			wait = max(wait, budget.Until.Sub(now))
		}
	}
	if wait > 0 {
		if b.refusals.timed > 0 {
			b.close(now.Add(min(leastBackoff<<min(b.refusals.timed-1, 20), maxBackoff)))
		}
		b.refusals.timed++
		return wait, true
	}
	if wait = firstBackoff; gap > 0 {
		wait = min(wait, 2*gap)
	}
	wait = min(wait<<min(b.refusals.timeless, 16), maxBackoff)
	b.refusals.timeless++
	b.close(now.Add(wait))
	return wait, true
}

// fail begins a wait after the second connection error in a row, and after each later one. The wait is
// one second at first, and doubles each time. At the first error, the server may only have closed an
// idle connection. If a request sent before the last error fails, too, the two errors count as one.
func (b *backoff) fail(seq, sent uint64, now time.Time) {
	if seq <= b.brokenAt {
		return
	}
	b.brokenAt, b.failedAt = sent, now
	if b.broken++; b.broken == 1 {
		return
	}
	b.close(now.Add(min(firstBackoff<<min(b.broken-2, 16), maxBroken)))
	b.narrow(sent, now)
}

// close prevents sending before an instant.
func (b *backoff) close(until time.Time) {
	if until.After(b.until) {
		b.until = until
	}
}

// narrow permits a single request in flight, so that the waiting requests are not all refused again at once.
func (b *backoff) narrow(sent uint64, now time.Time) {
	b.window, b.narrowed, b.wideAt = 1, sent, now.Add(narrowFor)
	if b.until.After(now) {
		b.wideAt = b.until.Add(narrowFor)
	}
}

// serve ends the row of refusals, because a request was served.
func (b *backoff) serve(f flight) {
	b.refusals = refusals{}
	b.widen(f)
}

// widen permits one more request in flight, for a request sent after the window was narrowed and not refused.
func (b *backoff) widen(f flight) {
	if b.window > 0 && f.seq > max(b.narrowed, b.silent) {
		b.window = (b.window + 1) % wideEnough
	}
}

// widenForSilent widens the window for requests without an answer, because a refusal
// would have come by now. So silent streams do not delay the others one by one.
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

// holds reports whether the window or the number of connection errors must be kept.
func (b *backoff) holds(now time.Time) bool {
	return b.window > 0 && now.Before(b.wideAt) || b.broken > 0 && now.Before(b.failedAt.Add(narrowFor))
}

// reset ends the wait, the row of refusals and the window. Later refusals of earlier requests do not count.
func (b *backoff) reset(sent uint64) {
	b.until, b.window = time.Time{}, 0
	b.refusals, b.backedAt = refusals{}, sent
	b.broken, b.brokenAt = 0, sent
}
