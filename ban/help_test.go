package ban_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/ratelimittest"
)

const (
	ms = time.Millisecond
	s  = time.Second
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

func onClock(t testing.TB, clock *ratelimittest.Clock, limit ratelimit.Limit) *ratelimit.Keyed[string] {
	t.Helper()
	l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	return l
}

func limiterWith(t testing.TB, limit ratelimit.Limit, opts ratelimit.Options[string]) *ratelimit.Keyed[string] {
	t.Helper()
	l, err := ratelimit.New(limit, &opts)
	require.NoError(t, err)
	return l
}

func remaining(t testing.TB, l *ratelimit.Keyed[string], key string) int {
	t.Helper()
	d, err := l.Peek(key, 0)
	require.NoError(t, err)
	return d.Remaining
}

func chainOf(t testing.TB, limiters ...ratelimit.Reserver[string]) *chain.Limiter[string] {
	t.Helper()
	c, err := chain.New(limiters...)
	require.NoError(t, err)
	return c
}

func itself(k string) (string, error) { return k, nil }
