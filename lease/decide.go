package lease

import (
	"context"
	"errors"
	"time"
)

// decide decides from what is held, or waits for a fetch: its own, or that of another
// caller, after which it starts again.
func (f *fetcher[K]) decide(ctx context.Context, h *holding[K], o order) outcome[K] {
	h.mu.Lock()
	out, ok := f.offerLocked(h, o)
	if ok {
		h.mu.Unlock()
		return out
	}
	if err := ctx.Err(); err != nil {
		h.mu.Unlock()
		return f.leaves(err)
	}
	if fl := h.flight; fl != nil {
		h.demand += o.demand()
		h.mu.Unlock()
		return f.waitAlong(ctx, h, fl, o)
	}
	if h.roomLocked(f.pace.most) < o.cost-h.left { // reservations that are not settled take it up
		h.mu.Unlock()
		return outcome[K]{todo: direct}
	}
	fl := f.fetchLocked(ctx, h, o, reading(f.clock))
	h.mu.Unlock()
	return f.await(ctx, h, fl)
}

// offerLocked decides without a fetch, if it can.
func (f *fetcher[K]) offerLocked(h *holding[K], o order) (out outcome[K], ok bool) {
	if h.dropped {
		return outcome[K]{todo: again}, true
	}
	if h.told.direct(o.cost) {
		return outcome[K]{todo: direct}, true
	}
	h.used = true
	now := reading(f.clock)
	if o.cost <= h.left {
		out = h.allowedLocked(o, now)
		if h.left <= h.low {
			f.prefetchLocked(h)
		}
		return h.localLocked(out), true
	}
	return f.denyLocked(h, o, now)
}

// denyLocked repeats a denial, if there is one that holds. A patient caller has to ask
// the remote limiter for a later instant.
func (f *fetcher[K]) denyLocked(h *holding[K], o order, now time.Duration) (out outcome[K], ok bool) {
	if !h.denial.covers(o.cost-h.left, o.brief, now) {
		return out, false
	}
	if o.patient {
		return outcome[K]{todo: direct}, true
	}
	return h.localLocked(outcome[K]{decision: h.denial.answer(h.left, now)}), true
}

// localLocked counts a decision that cost no round trip.
func (h *holding[K]) localLocked(out outcome[K]) outcome[K] {
	h.local++
	out.local = true
	return out
}

// await waits for the caller's own fetch. What arrives too late is there for others.
func (f *fetcher[K]) await(ctx context.Context, h *holding[K], fl *flight[K]) outcome[K] {
	err := f.until(ctx, fl)
	if err == nil {
		return fl.outcome()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if fl.landed {
		return fl.outcome()
	}
	fl.abandoned = true
	return f.leaves(err)
}

// leaves says what becomes of a caller who does not wait any longer. Whose own deadline has passed is
// sent to the remote limiter, if that answers such callers: at once, then.
func (f *fetcher[K]) leaves(err error) outcome[K] {
	if f.remote.answersLate && errors.Is(err, context.DeadlineExceeded) {
		return outcome[K]{todo: direct}
	}
	return outcome[K]{err: err}
}

// waitAlong waits for a fetch of another caller, or ahead of need.
func (f *fetcher[K]) waitAlong(ctx context.Context, h *holding[K], fl *flight[K], o order) outcome[K] {
	err := f.until(ctx, fl)
	h.mu.Lock()
	h.demand -= o.demand()
	h.mu.Unlock()
	switch {
	case err != nil:
		return f.leaves(err)
	case fl.failure != nil:
		return outcome[K]{err: fl.failure}
	}
	return outcome[K]{todo: again, failed: o.failed.And(fl.fails.List())}
}

// until waits until a fetch has landed, or says why the caller does not wait any longer.
func (f *fetcher[K]) until(ctx context.Context, fl *flight[K]) error {
	select {
	case <-fl.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-fl.over.Done():
	}
	select {
	case <-fl.done: // which ends the flight's contexts as well
		return nil
	default:
		return f.remote.overdue()
	}
}
