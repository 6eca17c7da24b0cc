package lease

import (
	"context"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/wait"
)

// Peek returns the remote limiter's answer to Peek, and spends nothing.
func (l *Limiter[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	if err := l.check(key, cost); err != nil {
		return ratelimit.Decision{}, err
	}
	held, degraded := 0, false
	if h := l.table.find(key); h != nil {
		h.mu.Lock()
		if !h.remoteState.direct(cost) {
			held, degraded = h.left, h.degradedLocked(cost)
		}
		h.mu.Unlock()
	}
	bounded, cancel := context.WithTimeout(wait.OrBackground(ctx), l.remote.timeout)
	defer cancel()
	l.remote.trips.Add(1)
	d, err := ratelimit.Peek(bounded, ratelimit.Limiter[K](l.remote.limiter), key, max(0, cost-held))
	if err == nil {
		d.Remaining, d.Debt = add(d.Remaining, held), max(0, d.Debt-held)
		d.Degraded = d.Degraded || degraded
	}
	return d, l.remote.explain(wait.OrBackground(ctx), bounded, err)
}

// Adjust adds delta to a key's spending at the remote limiter.
func (l *Limiter[K]) Adjust(ctx context.Context, key K, delta int) error {
	err := l.forward(ctx, key, func(ctx context.Context) error {
		return ratelimit.Adjust(ctx, ratelimit.Limiter[K](l.remote.limiter), key, delta)
	})
	if err == nil {
		l.corrected(key, delta)
	}
	return err
}

// Reset resets a key at the remote limiter and drops the units held here. Other processes may still spend their units.
func (l *Limiter[K]) Reset(ctx context.Context, key K) error {
	err := l.forward(ctx, key, func(ctx context.Context) error {
		return ratelimit.Reset(ctx, ratelimit.Limiter[K](l.remote.limiter), key)
	})
	if h := l.table.find(key); h != nil && err == nil {
		h.mu.Lock()
		h.forgetLocked()
		h.mu.Unlock()
	}
	return err
}

// forward passes a call other than a decision to the remote limiter.
func (l *Limiter[K]) forward(ctx context.Context, key K, f func(context.Context) error) error {
	if err := l.check(key, 0); err != nil {
		return err
	}
	bounded, cancel := context.WithTimeout(wait.OrBackground(ctx), l.remote.timeout)
	defer cancel()
	l.remote.trips.Add(1)
	return l.remote.explain(wait.OrBackground(ctx), bounded, f(bounded))
}

// forgetLocked drops a key's state after a reset at the remote limiter. The earlier batches have nothing to give back.
func (h *holding[K]) forgetLocked() {
	for _, b := range h.batches {
		b.gone = true
	}
	for _, b := range h.waiting {
		b.gone = true
		h.returns.idle(-b.left)
	}
	h.batches, h.waiting, h.left, h.open, h.low = nil, nil, 0, 0, -1
	h.denial = nil
	h.sizer.forget()
	if h.fetch != nil {
		h.fetch.stale = true
	}
}
