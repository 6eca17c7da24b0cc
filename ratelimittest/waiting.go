package ratelimittest

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
)

// hung is how long, in real time, a call may take that has to answer at once. It is
// no measure of speed: only what would hang ever comes near it.
const hung = time.Minute

// waiting makes the call, and ends the history if it hangs.
func (p *party) waiting(ctx context.Context, cost int) error {
	ctx, stop := context.WithCancelCause(ctx)
	defer stop(nil)
	late := time.AfterFunc(hung, func() { stop(errHung) })
	defer late.Stop()
	err := p.has.wait(ctx, p.key(), cost)
	p.note("Wait(%s, %d): %v", p.name, cost, err)
	p.reached(err)
	p.must(!errors.Is(context.Cause(ctx), errHung), waitIsTrue, "Wait for cost %d does not return", cost)
	return err
}

var errHung = errors.New("ratelimittest: the call hung")

func (h *history) ctx() context.Context { return context.Background() }

// playWaitFits waits for what fits at once.
func playWaitFits(h *history) {
	a, b := h.party(), h.party()
	cost := 1
	if h.limit.Algorithm != ratelimit.AlgorithmLeakyBucket {
		cost = h.cost(h.limit.Capacity())
	}
	err := a.waiting(h.ctx(), cost)
	h.must(err == nil, waitIsTrue, "cost %d fits, and Wait fails: %v", cost, err)
	b.spend(cost)
	h.alike(waitIsTrue, a, b, "one has waited for what fitted, the other has taken it")
}

// playWaitErrors waits for what can never be.
func playWaitErrors(h *history) {
	a, b := h.party(), h.party()
	for _, test := range []struct {
		cost int
		want error
	}{{-1, ratelimit.ErrNegativeCost}, {h.limit.Capacity() + 1, ratelimit.ErrExceedsLimit}} {
		if test.cost > h.limit.Capacity() || test.cost < 0 {
			err := a.waiting(h.ctx(), test.cost)
			h.must(errors.Is(err, test.want), waitIsTrue, "cost %d: the error is %v, want %q", test.cost, err, test.want)
		}
	}
	err := a.waiting(h.ctx(), 0)
	h.must(err == nil, waitIsTrue, "a cost of 0 fails: %v", err)
	h.alike(waitIsTrue, a, b, "one has waited for costs that are none")
}

// playWaitDeadline waits with a deadline that comes before the cost's time.
func playWaitDeadline(h *history) {
	a, b, ok := h.exhausted()
	if !ok {
		return
	}
	ctx, stop := context.WithTimeout(h.ctx(), hung)
	defer stop()
	err := a.waiting(ctx, h.cost(1))
	if h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		h.must(errors.Is(err, ratelimit.ErrLimited), waitIsTrue, "the queue is full, and the error is %v", err)
	} else {
		h.must(errors.Is(err, context.DeadlineExceeded), waitIsTrue, "the deadline comes first, and the error is %v", err)
		h.must(ctx.Err() == nil, waitIsTrue, "the deadline comes first, and Wait does not fail at once")
	}
	h.alike(waitIsTrue, a, b, "one has waited in vain")
}

// exhausted returns two keys that have to wait for hours, if the engine knows such limits.
func (h *history) exhausted() (a, b *party, ok bool) {
	slow := newLimit(h.limit.Algorithm, ratelimit.PerDay(1+h.rng.IntN(5)), 1+h.rng.IntN(5))
	if !h.cfg.accepts(slow) {
		return nil, nil, false
	}
	h.limit, h.lim = slow, h.newLimiter(slow)
	a, b = h.party(), h.party()
	a.spend(slow.Capacity())
	b.spend(slow.Capacity())
	return a, b, true
}

// playWaitCancelled cancels a waiter, before it comes and while it waits.
func playWaitCancelled(h *history) {
	a, b, ok := h.exhausted()
	if !ok || h.limit.Algorithm == ratelimit.AlgorithmLeakyBucket {
		return
	}
	for _, after := range []time.Duration{0, 5 * time.Millisecond} {
		ctx, stop := context.WithCancel(h.ctx())
		if after == 0 {
			stop()
		}
		late := time.AfterFunc(after, stop)
		err := a.waiting(ctx, h.cost(1))
		late.Stop()
		h.must(errors.Is(err, context.Canceled), waitIsTrue, "the context is cancelled, and the error is %v", err)
	}
	h.alike(waitIsTrue, a, b, "one has waited until its context was cancelled")
}
