package failover

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit"
)

// Peek returns the result that Take would have, and changes nothing.
func (l *Limiter[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	a := l.decide(ctx, question[K]{cost: cost, ask: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
		d, err := ratelimit.Peek(ctx, ratelimit.Limiter[K](engine), key, cost)
		return answer{decision: d, err: err}
	}})
	return a.decision, a.err
}

// Adjust adjusts a key's spending with the primary. It is an error if the primary is not called or fails.
func (l *Limiter[K]) Adjust(ctx context.Context, key K, delta int) error {
	return l.tell(ctx, "adjust", func(ctx context.Context, primary ratelimit.Limiter[K]) error {
		return ratelimit.Adjust(ctx, primary, key, delta)
	})
}

// Reset forgets a key with the primary and the stand-in, and joins the errors.
func (l *Limiter[K]) Reset(ctx context.Context, key K) error {
	err := l.tell(ctx, "reset", func(ctx context.Context, primary ratelimit.Limiter[K]) error {
		return ratelimit.Reset(ctx, primary, key)
	})
	if ctx == nil {
		ctx = noContext
	}
	return errors.Join(err, ratelimit.Reset(ctx, ratelimit.Limiter[K](l.instead), key))
}

// tell passes on to the primary a call that no stand-in can make.
func (l *Limiter[K]) tell(ctx context.Context, what string, f func(context.Context, ratelimit.Limiter[K]) error) error {
	if ctx == nil {
		ctx = noContext
	}
	a, o := l.askPrimary(ctx, question[K]{ask: func(ctx context.Context, engine ratelimit.Reserver[K]) answer {
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
