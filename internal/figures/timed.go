package figures

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/failures"
)

// Timed returns a limiter that reports how long another limiter's decisions take. It does not measure
// Wait, because Wait sleeps for most of its time. The result has the other limiter's optional methods.
func Timed[K any](l ratelimit.Reserver[K], took func(context.Context, time.Duration)) ratelimit.Reserver[K] {
	t := &timed[K]{l, took}
	if failures.AnswersLate(l) {
		return late[K]{timed: t}
	}
	return t
}

// late is a timed limiter around one that answers after the caller's deadline: see [failures.Late].
type late[K any] struct {
	*timed[K]
	failures.Late
}

type timed[K any] struct {
	ratelimit.Reserver[K]
	took func(context.Context, time.Duration)
}

func (t *timed[K]) since(ctx context.Context, start time.Time) { t.took(ctx, time.Since(start)) }

func (t *timed[K]) Allow(key K, cost int) bool {
	defer t.since(context.Background(), time.Now())
	return t.Reserver.Allow(key, cost)
}

func (t *timed[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	defer t.since(ctx, time.Now())
	return t.Reserver.Take(ctx, key, cost)
}

func (t *timed[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	defer t.since(ctx, time.Now())
	return t.Reserver.Reserve(ctx, key, cost, maxDelay)
}

func (t *timed[K]) Wait(ctx context.Context, key K, cost int) error {
	return ratelimit.Wait(ctx, t.Reserver, key, cost)
}

// Describe returns the limiter's description.
func (t *timed[K]) Describe() ratelimit.Description { return ratelimit.Describe(t.Reserver) }

func (t *timed[K]) Peek(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	return ratelimit.Peek(ctx, ratelimit.Limiter[K](t.Reserver), key, cost)
}

func (t *timed[K]) Adjust(ctx context.Context, key K, delta int) error {
	return ratelimit.Adjust(ctx, ratelimit.Limiter[K](t.Reserver), key, delta)
}

func (t *timed[K]) Reset(ctx context.Context, key K) error {
	return ratelimit.Reset(ctx, ratelimit.Limiter[K](t.Reserver), key)
}
