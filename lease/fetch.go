package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
)

// maxAhead is how many fetches ahead of need are under way at most, over all keys.
const maxAhead = 256

// fetcher fetches batches, one at a time for each key, and gives back those that have
// been held for too long.
type fetcher[K comparable] struct {
	remote   *remote[K]
	returns  *returns
	clock    ratelimit.Clock
	pace     pace
	denyFor  time.Duration
	limits   limits
	calendar calendar[K]
	ahead    atomic.Int64 // fetches ahead of need that are under way
}

// fetchLocked starts a fetch for a caller whose cost is not held. It ends with
// Options.Timeout, and not with the caller's context: others may wait for it as well.
func (f *fetcher[K]) fetchLocked(ctx context.Context, h *holding[K], o order, now time.Duration) *flight[K] {
	need := o.cost - h.left
	fl := &flight[K]{order: o, need: need, n: f.amountLocked(h, need, now)}
	f.launchLocked(context.WithoutCancel(ctx), h, fl)
	return fl
}

// prefetchLocked starts a fetch ahead of need.
func (f *fetcher[K]) prefetchLocked(h *holding[K]) {
	h.low = -1
	if h.flight != nil || h.roomLocked(f.pace.most) < 2 || f.ahead.Load() >= maxAhead {
		return
	}
	if n := f.amountLocked(h, 1, reading(f.clock)); n > 1 {
		f.ahead.Add(1)
		f.launchLocked(context.Background(), h, &flight[K]{n: n})
	}
}

// amountLocked returns how much to fetch for a caller who lacks need units. It is enough
// for those who wait as well, if the budget has that much.
func (f *fetcher[K]) amountLocked(h *holding[K], need int, now time.Duration) int {
	waiting := int(min(h.demand, int64(f.pace.most-need)))
	n := max(h.sizer.next(f.pace, now, h.spent, need), need+waiting)
	return min(h.told.modest(n, need), h.roomLocked(f.pace.most))
}

func (f *fetcher[K]) launchLocked(ctx context.Context, h *holding[K], fl *flight[K]) {
	var over, call context.CancelFunc
	fl.over, over = context.WithTimeout(failures.With(ctx, fl.order.failed, &fl.fails), f.remote.timeout)
	// A remote limiter that has an answer at its deadline (package failover) is heard in time.
	fl.ctx, call = context.WithTimeout(fl.over, f.remote.timeout-f.remote.timeout/8)
	fl.cancel = func() { call(); over() }
	fl.done = make(chan struct{})
	h.flight = fl
	go f.fly(h, fl)
}

// fly is the goroutine of a fetch.
func (f *fetcher[K]) fly(h *holding[K], fl *flight[K]) {
	defer fl.cancel()
	res, n, err := f.ask(h.key, fl)
	if fl.need == 0 {
		f.ahead.Add(-1)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flight, fl.landed = nil, true
	switch {
	case err == nil && fl.stale: // what was said may be from before the reset
		fl.out.todo = again
		if res.Allowed {
			f.returns.give(&batch{res: res, size: n, left: n})
		}
	case err == nil:
		f.landLocked(h, fl, res, n)
	default:
		f.failLocked(fl, n, err)
	}
	close(fl.done)
}

// ask asks for the batch, and if that is refused, for what the caller lacks alone. A patient
// caller is sent to the remote limiter instead.
func (f *fetcher[K]) ask(key K, fl *flight[K]) (res *ratelimit.Reservation, n int, err error) {
	defer caught(&err)
	n = fl.n
	res, err = f.remote.ask(fl.ctx, key, n, 0)
	if refused(res, err) && fl.need > 0 && fl.need < n && !fl.patient {
		n = fl.need
		res, err = f.remote.ask(fl.ctx, key, n, 0)
	}
	return res, n, f.remote.explain(context.Background(), fl.ctx, err)
}

// refused reports whether a smaller batch might be allowed.
func refused(res *ratelimit.Reservation, err error) bool {
	return err == nil && !res.Allowed || errors.Is(err, ratelimit.ErrExceedsLimit)
}

// landLocked takes note of what the remote limiter has said, and serves the caller
// before all others, so that they cannot take away what was fetched for it. A batch that
// is no larger than the caller's cost is the caller's, and not held: so a
// reservation of a key with little traffic is settled exactly.
func (f *fetcher[K]) landLocked(h *holding[K], fl *flight[K], res *ratelimit.Reservation, n int) {
	now := reading(f.clock)
	f.hearLocked(h, res.Decision, now)
	switch {
	case res.Allowed && n == fl.cost && !fl.abandoned:
		h.spent += int64(n)
		fl.out = outcome[K]{decision: h.told.answer(h.left, now), whole: res}
		fl.out.decision.Degraded = res.Degraded
	case res.Allowed:
		f.holdLocked(h, &batch{res: res, size: n, left: n, degraded: res.Degraded}, fl.need, res.Remaining)
		f.serveLocked(h, fl, now)
	case fl.patient || h.told.direct(fl.cost):
		fl.out.todo = direct
	case n == fl.need:
		h.denial = newDenial(res.Decision, n, now, f.denyFor)
		fl.out.decision = h.denial.answer(h.left, now)
	}
}

// failLocked passes on an error. Those who have waited along share it if it says nothing
// about the caller's own cost: each of them would only run into it again.
func (f *fetcher[K]) failLocked(fl *flight[K], n int, err error) {
	fl.out.err = err
	if errors.Is(err, ratelimit.ErrUnavailable) {
		fl.failure = err
	}
	if fl.patient && n > fl.need && errors.Is(err, ratelimit.ErrExceedsLimit) {
		fl.out = outcome[K]{todo: direct}
	}
}

// serveLocked spends the caller's cost, unless the caller has left.
func (f *fetcher[K]) serveLocked(h *holding[K], fl *flight[K], now time.Duration) {
	if fl.need == 0 || fl.abandoned {
		return
	}
	if fl.cost > h.left { // others have spent what was left meanwhile
		fl.out.todo = again
		return
	}
	fl.out = h.allowedLocked(fl.order, now)
	if h.left <= h.low {
		f.prefetchLocked(h)
	}
}

// allowedLocked spends a cost of which as much is held, and returns the answer.
func (h *holding[K]) allowedLocked(o order, now time.Duration) (out outcome[K]) {
	if o.keep {
		h.claimLocked(o.cost, &out.claims)
	} else {
		h.spendLocked(o.cost)
	}
	out.decision = h.told.answer(h.left, now)
	out.decision.Degraded = h.batches[0].degraded
	return out
}

// forfeitAfter is how many times as long as it is spent a batch waits for its claims.
const forfeitAfter = 10

// holdLocked takes a batch in, and sees to it that it is given back in time. Where the remote limiter
// has little left, what is not used soon goes back sooner, since another process may need it.
func (f *fetcher[K]) holdLocked(h *holding[K], b *batch, need, remaining int) {
	hold := f.pace.holdFor
	if remaining/4 < f.pace.most {
		hold = min(hold, 2*f.pace.batchFor)
	}
	b.until = f.calendar.now() + hold
	h.addLocked(b, need)
	f.calendar.add(b.until, h)
}

// forfeits is when a batch waits for its claims no longer.
func (f *fetcher[K]) forfeits(b *batch) time.Duration {
	return b.until + (forfeitAfter-1)*f.pace.holdFor
}

// expire gives back the batches that have been held for long enough.
func (f *fetcher[K]) expire(h *holding[K]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := f.calendar.now()
	h.retireLocked(func(b *batch) bool { return b.until <= now })
	h.forfeitLocked(func(b *batch) bool { return f.forfeits(b) <= now })
	for _, b := range h.waiting {
		if b.retired && !b.dated {
			b.dated = true
			f.calendar.add(f.forfeits(b), h)
		}
	}
}
