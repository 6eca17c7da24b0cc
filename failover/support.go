package failover

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/optional"
)

// Peek returns Take's decision, and changes nothing.
func (l *Limiter[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	a := l.decide(ctx, question[K]{cost: cost, call: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		d, err := ratelimit.Peek(ctx, ratelimit.Limiter[K](engine), key, cost)
		return answer{decision: d, err: err}
	}})
	return a.decision, a.err
}

// PeekEach returns each layer's decision, as [ratelimit.Layered.PeekEach] does. It uses
// the limiter that would decide now: the primary, or the stand-in, whose Decisions are
// Degraded. The error wraps [errors.ErrUnsupported] if this is not a Layered.
func (l *Limiter[K]) PeekEach(ctx context.Context, key K, cost int) ([]ratelimit.Decision, error) {
	a := l.decide(ctx, question[K]{cost: cost, call: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		layers, ok := engine.(interface {
			PeekEach(ctx context.Context, key K, cost int) ([]ratelimit.Decision, error)
		})
		if !ok {
			return answer{err: optional.Unsupported("failover", engine, "PeekEach")}
		}
		each, err := layers.PeekEach(ctx, key, cost)
		return answer{each: each, err: err}
	}})
	for i := range a.each {
		d := &a.each[i]
		if !a.standIn || d.Limit.Algorithm == 0 {
			continue
		}
		if d.Degraded = true; a.err == nil && !d.Allowed && d.RetryAfter == 0 { // only the primary might allow the cost
			d.RetryAfter = l.openFor
		}
	}
	return a.each, a.err
}

// Adjust calls the primary's Adjust. It returns an error if the primary is not called or fails.
func (l *Limiter[K]) Adjust(ctx context.Context, key K, delta int) error {
	return l.forward(ctx, "adjust", func(ctx context.Context, primary ratelimit.Limiter[K]) error {
		return ratelimit.Adjust(ctx, primary, key, delta)
	})
}

// Reset resets a key at the primary and the stand-in, and joins their errors.
func (l *Limiter[K]) Reset(ctx context.Context, key K) error {
	err := l.forward(ctx, "reset", func(ctx context.Context, primary ratelimit.Limiter[K]) error {
		return ratelimit.Reset(ctx, primary, key)
	})
	if ctx == nil {
		ctx = noContext
	}
	return errors.Join(err, ratelimit.Reset(ctx, ratelimit.Limiter[K](l.instead), key))
}

// forward makes a call for the primary alone.
func (l *Limiter[K]) forward(ctx context.Context, what string, f func(context.Context, ratelimit.Limiter[K]) error) error {
	if ctx == nil {
		ctx = noContext
	}
	a, o := l.callPrimary(ctx, question[K]{call: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		return answer{err: f(ctx, engine)}
	}})
	l.breaker.announce()
	switch {
	case o == answered:
		return nil
	case o == busy && a.err == nil, o == shut:
		return fmt.Errorf("failover: the primary was not called to %s (%s): %w", what, o, ratelimit.ErrUnavailable)
	case errors.Is(a.err, ratelimit.ErrUnavailable), !o.instead():
		return a.err
	}
	return fmt.Errorf("%w: %w", a.err, ratelimit.ErrUnavailable)
}
