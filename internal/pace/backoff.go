package pace

import (
	"time"
)

// backoff holds the wait after refusals, and the number of requests that may be in flight after it.
type backoff struct {
	until    time.Time // nothing is sent before: by the server's time, or longer
	refusals refusals  // the refusals in a row
	backedAt uint64    // the value of flights.sent at the last of these
	broken   int       // the number of connection errors in a row
	failedAt time.Time // the time of the last of these
	brokenAt uint64    // the value of flights.sent at the last of these

	window   int       // the maximum number of requests in flight; 0 for no maximum
	narrowed uint64    // the value of flights.sent when the window was last set to one
	silent   uint64    // the window has been widened for requests up to this number, because no refusal has come in time
	wideAt   time.Time // the time at which the window ends at the latest
}

// refusals counts refusals with a time to wait, and refusals without one.
type refusals struct{ timed, timeless int }

// wideEnough is the window from which on the number of requests in flight is not bounded.
const wideEnough = 64

// narrowFor is the time after a wait for which the window lasts, unless it becomes wide enough
// before. It lasts even if the queue is empty, because later requests may come all at once.
const narrowFor = time.Minute

// The wait after the first refusal without a time, the wait after the second refusal in
// a row with a time, and the maximum of both. Each further refusal doubles the wait.
const (
	firstBackoff = time.Second
	leastBackoff = 10 * time.Millisecond
	maxBackoff   = time.Minute
)

// maxBroken is the maximum wait after connection errors: an outage should not last longer here than at the server.
const maxBroken = 15 * time.Second

// refuse waits after a refusal, at least for as long as the server demands. The field close records that
// time. refuse returns the server's wait, or its own if there is none. It obeys the server's time, unless a
// request that obeyed one is refused again: then the server's times are too short. If a pace was measured,
// gap is the time between two requests. Then the wait after the first refusal without a time is twice the
// gap. Refusals of requests that were sent before the last refusal arrived count as the same refusal.
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

// fail waits after the second and each later connection error in a row: a second, then twice
// as long each time. The first error may only mean that the server has closed an idle
// connection. Errors of requests that were sent before the last error count as the same error.
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

// narrow limits the requests in flight to one, so that not all waiting requests are refused again at once.
func (b *backoff) narrow(sent uint64, now time.Time) {
	b.window, b.narrowed, b.wideAt = 1, sent, now.Add(narrowFor)
	if b.until.After(now) {
		b.wideAt = b.until.Add(narrowFor)
	}
}

// serve ends the row of refusals after a request that was served.
func (b *backoff) serve(f flight) {
	b.refusals = refusals{}
	b.widen(f)
}

// widen permits one more request in flight for each request that was sent after the window was narrowed and was not refused.
func (b *backoff) widen(f flight) {
	if b.window > 0 && f.seq > max(b.narrowed, b.silent) {
		b.window = (b.window + 1) % wideEnough
	}
}

// widenForSilent widens the window for requests that have no answer by the time at which a
// refusal would have come. So streams without an answer do not delay the others one by one.
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

// holds reports whether the window, or the number of connection errors, must be kept.
func (b *backoff) holds(now time.Time) bool {
	return b.window > 0 && now.Before(b.wideAt) || b.broken > 0 && now.Before(b.failedAt.Add(narrowFor))
}

// reset ends the wait, the row of refusals, and the window. Refusals of requests that were sent before do not count.
func (b *backoff) reset(sent uint64) {
	b.until, b.window = time.Time{}, 0
	b.refusals, b.backedAt = refusals{}, sent
	b.broken, b.brokenAt = 0, sent
}
