package ratelimit_test

import (
	"context"
	"time"

	"github.com/weir-go/ratelimit"
)

// engine is a limiter of another kind: its answers and errors are set by the test.
type engine struct {
	take    func() (ratelimit.Decision, error)
	settled []int
	fails   error // of Settle
}

func (e *engine) Allow(key string, cost int) bool {
	d, _ := e.Take(context.Background(), key, cost)
	return d.Allowed
}

func (e *engine) Take(context.Context, string, int) (ratelimit.Decision, error) { return e.take() }

func (e *engine) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	d, err := e.take()
	return ratelimit.NewReservation(d, func(actual int) error {
		e.settled = append(e.settled, actual)
		return e.fails
	}), err
}

func allows(d ratelimit.Decision) *engine {
	d.Allowed = true
	return &engine{take: func() (ratelimit.Decision, error) { return d, nil }}
}

func fails(err error) *engine {
	return &engine{take: func() (ratelimit.Decision, error) { return ratelimit.Decision{}, err }}
}
