package ratelimit

import (
	"context"
	"errors"
	"fmt"

	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/internal/optional"
)

// alone decides for a stack of one layer whose limiter cannot decide together with others. It calls the
// limiter's methods. The limiter has its own limits, checks costs, and reports its decisions itself.
type alone[K any] struct{ l Limiter[K] }

func (a alone[K]) Limit(int, string, Limit) (limit Limit, plan any, err error) { return }

func (a alone[K]) Decide(ctx context.Context, charges []Charge, q JointRequest) (func([]int) error, error) {
	c := &charges[0]
	key := c.alone.(K)
	var err error
	var settle func([]int) error
	switch {
	case q.free:
		c.Decision, err = a.l.Take(ctx, key, 0)
	case q.Peek:
		c.Decision, err = Peek(ctx, a.l, key, c.Cost)
	case q.Settled:
		settle, err = a.reserve(ctx, key, c, q)
	default:
		c.Decision, err = a.l.Take(ctx, key, c.Cost)
	}
	if c.Decided, c.Limit = err == nil, c.Decision.Limit; err != nil && c.Shadow {
		c.Err, err = err, nil
	}
	c.Due = max(c.Decision.RetryAfter, c.Decision.Delay)
	return settle, err
}

func (a alone[K]) reserve(ctx context.Context, key K, c *Charge, q JointRequest) (func([]int) error, error) {
	l, ok := a.l.(Reserver[K])
	if !ok {
		return nil, optional.Unsupported("ratelimit", a.l, "Reserve")
	}
	res, err := l.Reserve(ctx, key, c.Cost, q.MaxDelay)
	if res == nil {
		if err == nil {
			err = fmt.Errorf("ratelimit: Reserve of %T returned nothing", a.l)
		}
		return nil, err
	}
	c.Decision = res.Decision
	if c.hold = held.Hold(res); c.hold > 0 {
		c.Extend = res.Extend
	}
	return func(costs []int) error { return res.Settle(costs[0]) }, err
}

// wait calls the limiter's own wait, which may serve its callers in order.
func (a alone[K]) wait(ctx context.Context, c *Charge) error {
	l, ok := a.l.(Reserver[K])
	if !ok {
		return optional.Unsupported("ratelimit", a.l, "Reserve")
	}
	return Wait(ctx, l, c.alone.(K), c.Cost)
}

func (a alone[K]) Adjust(ctx context.Context, charges []Charge) error {
	var errs []error
	for i := range charges {
		errs = append(errs, Adjust(ctx, a.l, charges[i].alone.(K), charges[i].Cost))
	}
	return errors.Join(errs...)
}

func (a alone[K]) Report(int, Event[string]) {}
