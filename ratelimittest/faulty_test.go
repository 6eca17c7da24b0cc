package ratelimittest_test

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// faulty is the module's limiter with some methods replaced. A nil function means the limiter's own method.
type faulty struct {
	keyed
	take     func(ctx context.Context, key string, cost int) (ratelimit.Decision, error)
	peek     func(key string, cost int) (ratelimit.Decision, error)
	reserve  func(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error)
	wait     func(ctx context.Context, key string, cost int) error
	adjust   func(key string, delta int) error
	setLimit func(limit ratelimit.Limit) error
	sweep    func() int
	reset    func(key string)
	key      func(key string) string // maps a key to its budget's key
}

func (l *faulty) name(key string) string {
	if l.key != nil {
		return l.key(key)
	}
	return key
}

func (l *faulty) Allow(key string, cost int) bool {
	if l.take == nil {
		return l.keyed.Allow(l.name(key), cost)
	}
	d, _ := l.take(context.Background(), key, cost)
	return d.Allowed
}

func (l *faulty) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if l.take == nil {
		return l.keyed.Take(ctx, l.name(key), cost)
	}
	return l.take(ctx, key, cost)
}

func (l *faulty) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	if l.peek == nil {
		return l.keyed.Peek(ctx, l.name(key), cost)
	}
	return l.peek(key, cost)
}

func (l *faulty) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	if l.reserve == nil {
		return l.keyed.Reserve(ctx, l.name(key), cost, maxDelay)
	}
	return l.reserve(ctx, key, cost, maxDelay)
}

func (l *faulty) Wait(ctx context.Context, key string, cost int) error {
	if l.wait == nil {
		return l.keyed.Wait(ctx, l.name(key), cost)
	}
	return l.wait(ctx, key, cost)
}

func (l *faulty) Adjust(ctx context.Context, key string, delta int) error {
	if l.adjust == nil {
		return l.keyed.Adjust(ctx, l.name(key), delta)
	}
	return l.adjust(key, delta)
}

func (l *faulty) Reset(ctx context.Context, key string) error {
	if l.reset == nil {
		return l.keyed.Reset(ctx, l.name(key))
	}
	l.reset(key)
	return nil
}

func (l *faulty) SetLimit(limit ratelimit.Limit) error {
	if l.setLimit == nil {
		return l.keyed.SetLimit(limit)
	}
	return l.setLimit(limit)
}

func (l *faulty) Sweep() int {
	if l.sweep == nil {
		return l.keyed.Sweep()
	}
	return l.sweep()
}

// fault adds a bug to the module's limiter.
func fault(bug func(l *faulty, limit ratelimit.Limit, clock *ratelimittest.Clock)) func(ratelimit.Limit, *ratelimittest.Clock) limiter {
	return func(limit ratelimit.Limit, clock *ratelimittest.Clock) limiter {
		l := &faulty{keyed: good(limit, clock)}
		bug(l, limit, clock)
		return l
	}
}

// only returns a function that accepts some algorithms' limits.
func only(algorithms ...ratelimit.Algorithm) func(ratelimit.Limit) bool {
	return func(l ratelimit.Limit) bool {
		for _, a := range algorithms {
			if l.Algorithm == a {
				return true
			}
		}
		return false
	}
}

// current returns the limit in force.
func (l *faulty) current() ratelimit.Limit { return l.Describe().Limits[0] }

// settled returns a reservation with r's decision. Its settlement is a call to settle.
func settled(r *ratelimit.Reservation, settle func(actual int) error) *ratelimit.Reservation {
	return ratelimit.NewReservation(r.Decision, settle)
}
