package lease

import (
	"context"
	"fmt"

	"github.com/weir-go/ratelimit/internal/wait"
)

// Flush gives all batches back, even open reservations', and waits until the remote limiter has
// them. The limiter stays usable. The error lists the batches not given back, or is the context's.
func (l *Limiter[K]) Flush(ctx context.Context) error {
	l.mustBeMade()
	ctx = wait.OrBackground(ctx)
	returns := l.fetcher.returns
	batches, failed, _ := returns.ended()
	for range 2 { // a fetch ahead of need may follow a fetch for a caller
		for _, ft := range l.clear() {
			select {
			case <-ft.done:
			case <-ctx.Done():
				return fmt.Errorf("lease: Flush: a fetch is still under way: %w", ctx.Err())
			}
		}
	}
	l.clear()
	l.fetcher.timers.prune()
	all := returns.all()
	for i, g := range all {
		select {
		case <-g.done:
		case <-ctx.Done():
			return fmt.Errorf("lease: Flush: up to %d batches are still being given back: %w", len(all)-i, ctx.Err())
		}
	}
	given, lost, failure := returns.ended() // some returns may have ended before the last was started
	if given, lost = given-batches, lost-failed; lost > 0 {
		return fmt.Errorf("lease: Flush: %d of %d batches could not be given back: %w", lost, given+lost, failure)
	}
	return nil
}

// clear gives back all keys' batches, and returns the present fetches.
func (l *Limiter[K]) clear() (fetches []*fetch[K]) {
	for _, h := range l.table.all() {
		if ft := l.fetcher.clear(h); ft != nil {
			fetches = append(fetches, ft)
		}
	}
	return fetches
}

// clear gives back a key's batches, and returns its present fetch.
func (f *fetcher[K]) clear(h *holding[K]) *fetch[K] {
	h.mu.Lock()
	defer h.mu.Unlock()
	all := func(*batch) bool { return true }
	h.retireLocked(all)
	h.forfeitLocked(all)
	return h.fetch
}
