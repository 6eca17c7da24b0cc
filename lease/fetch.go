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
	remote  *remote[K]
	returns *returns
	clock   ratelimit.Clock
	pace    pace
	denyFor time.Duration
	ahead   atomic.Int64 // fetches ahead of need that are under way
}

// fetchLocked starts a fetch for a caller whose cost is not held. It ends with
// Options.Timeout, and not with the caller's context: others may wait for it as well.
func (f *fetcher[K]) fetchLocked(ctx context.Context, h *holding[K], o order, now time.Duration) *flight {
	need := o.cost - h.left
	if h.roomLocked(f.pace.most) < need {
		h.forfeitLocked()
	}
	fl := &flight{order: o, need: need, n: f.amountLocked(h, need, now)}
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
		f.launchLocked(context.Background(), h, &flight{n: n})
	}
}

// amountLocked returns how much to fetch for a caller who lacks need units. It is enough
// for those who wait as well, if the budget has that much.
func (f *fetcher[K]) amountLocked(h *holding[K], need int, now time.Duration) int {
	waiting := int(min(h.demand, int64(f.pace.most-need)))
	n := max(h.sizer.next(f.pace, now, h.spent, need), need+waiting)
	return min(h.told.modest(n, need), h.roomLocked(f.pace.most))
}

func (f *fetcher[K]) launchLocked(ctx context.Context, h *holding[K], fl *flight) {
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
func (f *fetcher[K]) fly(h *holding[K], fl *flight) {
	defer fl.cancel()
	res, n, err := f.ask(h.key, fl)
	if fl.need == 0 {
		f.ahead.Add(-1)
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	h.flight, fl.landed = nil, true
	if err == nil {
		f.landLocked(h, fl, res, n)
	} else {
		f.failLocked(fl, n, err)
	}
	close(fl.done)
}

// ask asks for the batch, and if that is refused, for what the caller lacks alone. A patient
// caller is sent to the remote limiter instead.
func (f *fetcher[K]) ask(key K, fl *flight) (res *ratelimit.Reservation, n int, err error) {
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
// is no larger than the caller's cost, and can be settled, is the caller's: so a
// reservation of a key with little traffic is settled exactly.
func (f *fetcher[K]) landLocked(h *holding[K], fl *flight, res *ratelimit.Reservation, n int) {
	now := reading(f.clock)
	h.hearLocked(res.Decision, now)
	switch {
	case res.Allowed && fl.keep && n == fl.cost && !fl.abandoned:
		h.spent += int64(n)
		fl.out = outcome{decision: h.told.answer(h.left, now), whole: res}
		fl.out.decision.Degraded = res.Degraded
	case res.Allowed:
		f.holdLocked(h, &batch{res: res, size: n, left: n, degraded: res.Degraded}, fl.need)
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
func (f *fetcher[K]) failLocked(fl *flight, n int, err error) {
	fl.out.err = err
	if errors.Is(err, ratelimit.ErrUnavailable) {
		fl.failure = err
	}
	if fl.patient && n > fl.need && errors.Is(err, ratelimit.ErrExceedsLimit) {
		fl.out = outcome{todo: direct}
	}
}

// serveLocked spends the caller's cost, unless the caller has left.
func (f *fetcher[K]) serveLocked(h *holding[K], fl *flight, now time.Duration) {
	if fl.need == 0 || fl.abandoned {
		return
	}
	n := h.spendLocked(fl.cost)
	if n == 0 { // others have spent what was left meanwhile
		fl.out.todo = again
		return
	}
	fl.out = h.allowedLocked(fl.order, n, now)
	if h.left <= h.low {
		f.prefetchLocked(h)
	}
}

// allowedLocked is the answer to a cost of which n units were spent of the first batch.
func (h *holding[K]) allowedLocked(o order, n int, now time.Duration) (out outcome) {
	out.decision = h.told.answer(h.left, now)
	out.decision.Degraded = h.batches[0].degraded
	if o.keep {
		out.claim = h.claimLocked(n)
	}
	return out
}

// holdLocked takes a batch in, and sees to it that it is given back in time.
func (f *fetcher[K]) holdLocked(h *holding[K], b *batch, need int) {
	b.until = time.Now().Add(f.pace.holdFor)
	h.addLocked(b, need)
	if h.armed {
		return
	}
	h.armed = true
	if h.timer == nil {
		h.timer = time.AfterFunc(f.pace.holdFor, func() { f.expire(h) })
	} else {
		h.timer.Reset(f.pace.holdFor)
	}
}

// expire gives back the batches that have been held for long enough.
func (f *fetcher[K]) expire(h *holding[K]) {
	h.mu.Lock()
	defer h.mu.Unlock()
	now := time.Now()
	f.returns.give(h.removeLocked(func(b *batch) bool { return !b.until.After(now) }))
	if h.armed = len(h.batches) > 0; h.armed {
		h.timer.Reset(h.batches[0].until.Sub(now))
	}
}
