package lease

import (
	"context"
	"errors"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
)

// want is a caller's request.
type want struct {
	cost    int
	keep    bool // whether the caller will settle the cost
	patient bool // whether the caller accepts a later instant if the remote limiter denies
	brief   bool // whether the caller needs no details

	failed failures.List // the limiters that failed in this caller's fetches
}

// demand returns the cost, bounded so sums do not overflow.
func (o want) demand() int64 { return min(int64(o.cost), 1<<32) }

// result is a decision's result for a caller.
type result[K comparable] struct {
	todo     todo
	decision ratelimit.Decision
	err      error
	claims   claims[K]              // the claims, if the caller will settle the cost
	whole    *ratelimit.Reservation // set instead of claims if the caller gets the whole batch
	local    bool                   // whether the decision needed no call to the remote limiter
	failed   failures.List          // the limiters that failed in the caller's fetches
}

// context returns a context for the remaining steps.
func (out *result[K]) context(ctx context.Context) context.Context {
	if len(out.failed) == 0 {
		return ctx
	}
	return failures.With(ctx, out.failed, nil)
}

// todo is a decision's next step.
type todo uint8

const (
	answered todo = iota // nothing is left to do
	again                // start again: the key was dropped, or other callers were faster
	direct               // call the remote limiter for this cost alone
)

// decide decides from the held units, or waits for a fetch. After another caller's fetch it starts again.
func (f *fetcher[K]) decide(ctx context.Context, h *holding[K], o want) result[K] {
	now := reading(f.clock)
	h.mu.Lock()
	now = h.atLocked(now)
	out, ok := f.offerLocked(h, o, now)
	if ok {
		h.mu.Unlock()
		return out
	}
	if err := ctx.Err(); err != nil {
		h.mu.Unlock()
		return f.leaves(err)
	}
	if ft := h.fetch; ft != nil {
		h.demand += o.demand()
		h.mu.Unlock()
		return f.waitAlong(ctx, h, ft, o)
	}
	if h.roomLocked(f.pace.most) < o.cost-h.left { // open reservations leave too little room
		h.mu.Unlock()
		return result[K]{todo: direct}
	}
	ft := f.fetchLocked(ctx, h, o, now)
	h.mu.Unlock()
	return f.await(ctx, h, ft)
}

// offerLocked decides without a fetch, if possible.
func (f *fetcher[K]) offerLocked(h *holding[K], o want, now time.Duration) (out result[K], ok bool) {
	if h.dropped {
		return result[K]{todo: again}, true
	}
	if h.remoteState.direct(o.cost) {
		return result[K]{todo: direct}, true
	}
	h.used = true
	if o.cost <= h.left {
		out = h.allowedLocked(o, now)
		if h.left <= h.low {
			f.prefetchLocked(h, now)
		}
		return h.localLocked(out), true
	}
	return f.denyLocked(h, o, now)
}

// denyLocked repeats a still valid denial. A patient caller has to call the remote limiter for a later instant.
func (f *fetcher[K]) denyLocked(h *holding[K], o want, now time.Duration) (out result[K], ok bool) {
	if !h.denial.covers(o.cost-h.left, o.brief, now) {
		return out, false
	}
	if o.patient {
		return result[K]{todo: direct}, true
	}
	return h.localLocked(result[K]{decision: h.denial.answer(h.left, now)}), true
}

// localLocked counts a decision without a round trip.
func (h *holding[K]) localLocked(out result[K]) result[K] {
	h.local++
	out.local = true
	return out
}

// await waits for the caller's own fetch. If a batch arrives too late for the caller, it serves others.
func (f *fetcher[K]) await(ctx context.Context, h *holding[K], ft *fetch[K]) result[K] {
	err := f.until(ctx, ft)
	if err == nil {
		return ft.result()
	}
	h.mu.Lock()
	defer h.mu.Unlock()
	if ft.arrived {
		return ft.result()
	}
	ft.abandoned = true
	return f.leaves(err)
}

// leaves returns a leaving caller's result. Some remote limiters answer callers whose own deadline
// has passed. In front of such a limiter the caller is sent to it, and gets its answer at once.
func (f *fetcher[K]) leaves(err error) result[K] {
	if f.remote.answersLate && errors.Is(err, context.DeadlineExceeded) {
		return result[K]{todo: direct}
	}
	return result[K]{err: err}
}

// waitAlong waits for another caller's fetch or a prefetch. Then the caller decides again.
func (f *fetcher[K]) waitAlong(ctx context.Context, h *holding[K], ft *fetch[K], o want) result[K] {
	err := f.until(ctx, ft)
	h.mu.Lock()
	h.demand -= o.demand()
	h.mu.Unlock()
	switch {
	case err != nil:
		return f.leaves(err)
	case ft.failure != nil:
		return result[K]{err: ft.failure}
	}
	return result[K]{todo: again, failed: o.failed.And(ft.fails.List())}
}

// until waits until a fetch has its answer, or returns why the caller stops waiting.
func (f *fetcher[K]) until(ctx context.Context, ft *fetch[K]) error {
	select {
	case <-ft.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	case <-ft.over.Done():
	}
	select {
	case <-ft.done: // this ends the fetch's contexts, too
		return nil
	default:
		return f.remote.overdue()
	}
}
