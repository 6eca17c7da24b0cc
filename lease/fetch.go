package lease

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
	"github.com/weir-go/ratelimit/internal/held"
)

// maxAhead is the maximum number of fetches ahead of need under way, over all keys.
const maxAhead = 256

// fetcher fetches batches, one at a time for each key, and gives back batches held for too long.
type fetcher[K comparable] struct {
	remote  *remote[K]
	returns *returns
	clock   ratelimit.Clock
	pace    pace
	denyFor time.Duration
	limits  limits
	timers  timers[K]
	ahead   atomic.Int64 // fetches ahead of need that are under way
}

// fetch is a call for one batch, for a waiting caller or ahead of need.
type fetch[K comparable] struct {
	want
	ctx    context.Context // the call's context; it ends a little before over
	over   context.Context // the context of all waiting callers; it ends after Options.Timeout
	cancel context.CancelFunc
	n      int           // requested units
	need   int           // units lacking to the caller; 0 without a caller
	done   chan struct{} // closed when the answer has arrived

	// The holding's lock guards these fields; out and failure may be read once done is closed.
	arrived   bool
	abandoned bool      // whether the caller has left
	stale     bool      // whether the key was reset; then the batch is not kept
	out       result[K] // the result for the caller
	failure   error     // why the remote limiter could not decide, for callers that waited along

	fails failures.Set // limiters failed in this fetch
}

// result returns the fetch's result for its caller.
func (ft *fetch[K]) result() result[K] {
	out := ft.out
	out.failed = ft.want.failed.And(ft.fails.List())
	return out
}

// fetchLocked starts a fetch for a caller whose cost is not held. Others may wait for
// the fetch, too, so it ends after Options.Timeout, not with the caller's context.
func (f *fetcher[K]) fetchLocked(ctx context.Context, h *holding[K], o want, now time.Duration) *fetch[K] {
	need := o.cost - h.left
	ft := &fetch[K]{want: o, need: need, n: f.amountLocked(h, need, now)}
	f.startLocked(context.WithoutCancel(ctx), h, ft)
	return ft
}

// prefetch starts a fetch ahead of need if few units are left.
func (f *fetcher[K]) prefetch(h *holding[K]) {
	now := reading(f.clock)
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.left <= h.low && !h.dropped {
		f.prefetchLocked(h, h.atLocked(now))
	}
}

// prefetchLocked starts a fetch ahead of need.
func (f *fetcher[K]) prefetchLocked(h *holding[K], now time.Duration) {
	h.low = -1
	if h.fetch != nil || h.roomLocked(f.pace.most) < 2 || f.ahead.Load() >= maxAhead {
		return
	}
	if n := f.amountLocked(h, 1, now); n > 1 {
		f.ahead.Add(1)
		f.startLocked(context.Background(), h, &fetch[K]{n: n})
	}
}

// amountLocked returns the number of units to fetch for a caller lacking need units.
// If the budget allows, the number suffices for the other waiting callers, too.
func (f *fetcher[K]) amountLocked(h *holding[K], need int, now time.Duration) int {
	waiting := int(min(h.demand, int64(f.pace.most-need)))
	n := max(h.sizer.next(f.pace, now, h.spent, need), need+waiting)
	return min(h.remoteState.modest(n, need), h.roomLocked(f.pace.most))
}

func (f *fetcher[K]) startLocked(ctx context.Context, h *holding[K], ft *fetch[K]) {
	var over, call context.CancelFunc
	ft.over, over = context.WithTimeout(failures.With(ctx, ft.want.failed, &ft.fails), f.remote.timeout)
	// The call's deadline is earlier than the fetch's: some remote
	// limiters, such as package failover's, answer at their deadline.
	ft.ctx, call = context.WithTimeout(ft.over, f.remote.timeout-f.remote.timeout/8)
	ft.cancel = func() { call(); over() }
	ft.done = make(chan struct{})
	h.fetch = ft
	go f.run(h, ft)
}

// run executes a fetch, on its own goroutine.
func (f *fetcher[K]) run(h *holding[K], ft *fetch[K]) {
	defer ft.cancel()
	sent := f.timers.now()
	res, n, err := f.reserve(h.key, ft)
	if ft.need == 0 {
		f.ahead.Add(-1)
	}
	now := reading(f.clock)
	h.mu.Lock()
	defer h.mu.Unlock()
	h.fetch, ft.arrived = nil, true
	switch {
	case err == nil && ft.stale: // the answer may have been given before the reset
		ft.out.todo = again
		if res.Allowed {
			f.returns.give(&batch{res: res, size: n, left: n})
		}
	case err == nil:
		f.arriveLocked(h, ft, res, n, sent, h.atLocked(now))
	default:
		f.failLocked(ft, n, err)
	}
	close(ft.done)
}

// reserve reserves the batch. If the batch is refused, reserve tries only the units lacking to the
// caller. It does not do so for a patient caller, because such a caller calls the remote limiter itself.
func (f *fetcher[K]) reserve(key K, ft *fetch[K]) (res *ratelimit.Reservation, n int, err error) {
	defer caught(&err)
	n = ft.n
	res, err = f.remote.call(ft.ctx, key, n, 0)
	if refused(res, err) && ft.need > 0 && ft.need < n && !ft.patient {
		n = ft.need
		res, err = f.remote.call(ft.ctx, key, n, 0)
	}
	return res, n, f.remote.explain(context.Background(), ft.ctx, err)
}

// refused reports whether a smaller batch might be allowed.
func refused(res *ratelimit.Reservation, err error) bool {
	return err == nil && !res.Allowed || errors.Is(err, ratelimit.ErrExceedsLimit)
}

// arriveLocked records the remote limiter's answer. It serves the fetch's caller before all
// others, so they cannot spend its units. A batch not larger than the caller's cost belongs to
// the caller and is not held. So a reservation of a key with little traffic is settled exactly.
func (f *fetcher[K]) arriveLocked(h *holding[K], ft *fetch[K], res *ratelimit.Reservation, n int, sent, now time.Duration) {
	f.recordLocked(h, res.Decision, now)
	if held.Hold(res) > 0 { // the remote limiter has an undescribed limit of units in use
		h.remoteState.holds = true
		if n != ft.cost || !ft.keep || ft.abandoned {
			f.returns.give(&batch{res: res, size: n, left: n})
			ft.out.todo = direct
			return
		}
	}
	switch {
	case res.Allowed && n == ft.cost && !ft.abandoned:
		h.spent += int64(n)
		ft.out = result[K]{decision: h.remoteState.answer(h.left, now), whole: res}
		ft.out.decision.Degraded = res.Degraded
	case res.Allowed:
		f.holdLocked(h, &batch{res: res, size: n, left: n, degraded: res.Degraded}, ft.need, sent)
		f.serveLocked(h, ft, now)
	case ft.patient || h.remoteState.direct(ft.cost):
		ft.out.todo = direct
	case n == ft.need:
		h.denial = newDenial(res.Decision, n, now, f.denyFor)
		ft.out.decision = h.denial.answer(h.left, now)
	}
}

// failLocked passes on an error. Callers that waited along share the error, unless it concerns
// only the cost of the fetch's caller. Otherwise each would call and get the same error.
func (f *fetcher[K]) failLocked(ft *fetch[K], n int, err error) {
	ft.out.err = err
	if errors.Is(err, ratelimit.ErrUnavailable) {
		ft.failure = err
	}
	if ft.patient && n > ft.need && errors.Is(err, ratelimit.ErrExceedsLimit) {
		ft.out = result[K]{todo: direct}
	}
}

// serveLocked spends the caller's cost, unless the caller has left.
func (f *fetcher[K]) serveLocked(h *holding[K], ft *fetch[K], now time.Duration) {
	if ft.need == 0 || ft.abandoned {
		return
	}
	if ft.cost > h.left { // others may have spent the remaining units meanwhile
		ft.out.todo = again
		return
	}
	ft.out = h.allowedLocked(ft.want, now)
	if h.left <= h.low {
		f.prefetchLocked(h, now)
	}
}

// allowedLocked spends a cost from the process's units, and returns the decision.
func (h *holding[K]) allowedLocked(o want, now time.Duration) (out result[K]) {
	degraded := h.degradedLocked(o.cost)
	if o.keep {
		h.claimLocked(o.cost, &out.claims)
	} else {
		h.spendLocked(o.cost)
	}
	out.decision = h.remoteState.answer(h.left, now)
	out.decision.Degraded = degraded
	return out
}

// forfeitAfter is how long a batch waits for its claims, as a multiple of its lifetime.
const forfeitAfter = 10

// holdLocked adds a batch to the holding, and schedules its return. If the remote limiter has few units
// left, unused units go back sooner, because another process may need them. Units of a calendar's window
// are not held past its end. Otherwise they would be spent in addition to the next window's units.
func (f *fetcher[K]) holdLocked(h *holding[K], b *batch, need int, sent time.Duration) {
	hold := f.pace.holdFor
	if b.res.Remaining/4 < f.pace.most {
		hold = min(hold, later(f.pace.batchFor, f.pace.batchFor))
	}
	b.until = later(f.timers.now(), hold)
	if b.res.Limit.Algorithm == ratelimit.AlgorithmCalendar {
		b.until = min(b.until, later(sent, b.res.ResetAfter))
	}
	h.addLocked(b, need)
	f.timers.add(b.until, h)
}

// forfeits returns the instant when a batch stops waiting for its claims.
func (f *fetcher[K]) forfeits(b *batch) time.Duration {
	at := b.until
	for range forfeitAfter - 1 {
		at = later(at, f.pace.holdFor)
	}
	return at
}

// expire gives back the batches whose time is up.
func (f *fetcher[K]) expire(h *holding[K]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := f.timers.now()
	h.retireLocked(func(b *batch) bool { return b.until <= now })
	h.forfeitLocked(func(b *batch) bool { return f.forfeits(b) <= now })
	for _, b := range h.waiting {
		if b.retired && !b.dated {
			b.dated = true
			f.timers.add(f.forfeits(b), h)
		}
	}
}
