package ratelimittest_test

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// remote is the module's limiter with the methods of an engine that does I/O: each takes a context and may fail.
type remote struct {
	l    local
	link *link
}

// local has the methods of the module's limiter, with or without a bug.
type local interface {
	ratelimit.Reserver[string]
	Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error)
	Wait(ctx context.Context, key string, cost int) error
	Adjust(ctx context.Context, key string, delta int) error
	Reset(ctx context.Context, key string) error
	SetLimit(limit ratelimit.Limit) error
}

// link is the connection between the engine and its store.
type link struct {
	calls  atomic.Int64
	every  int64 // one call out of this many fails; 0 means none
	does   work  // the effect of failing calls
	opened atomic.Int64
	closed atomic.Int64
}

// work is the effect of a failing call.
type work string

const (
	sometimes work = "sometimes" // every second failing call has its full effect
	always    work = "always"
	never     work = "never"
)

var errDown = fmt.Errorf("%w: connection reset by peer", ratelimit.ErrUnavailable)

// fails reports whether this call fails, and whether it fails before the store has received it.
func (k *link) fails() (before, after bool) {
	n := k.calls.Add(1)
	if k.every == 0 || n%k.every != 0 {
		return false, false
	}
	after = k.does == always || k.does != never && n/k.every%2 == 1
	return !after, after
}

// over makes a call through the link.
func over[T any](k *link, call func() (T, error)) (T, error) {
	before, after := k.fails()
	if before {
		return *new(T), errDown
	}
	v, err := call()
	if after {
		return *new(T), errDown
	}
	return v, err
}

func nothing(call func() error) func() (struct{}, error) {
	return func() (struct{}, error) { return struct{}{}, call() }
}

func (r *remote) Allow(key string, cost int) bool {
	ok, err := over(r.link, func() (bool, error) { return r.l.Allow(key, cost), nil })
	return err == nil && ok
}

func (r *remote) Take(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return over(r.link, func() (ratelimit.Decision, error) { return r.l.Take(ctx, key, cost) })
}

func (r *remote) Peek(ctx context.Context, key string, cost int) (ratelimit.Decision, error) {
	return over(r.link, func() (ratelimit.Decision, error) { return r.l.Peek(ctx, key, cost) })
}

func (r *remote) Reserve(ctx context.Context, key string, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	res, err := over(r.link, func() (*ratelimit.Reservation, error) { return r.l.Reserve(ctx, key, cost, maxDelay) })
	if res == nil {
		return ratelimit.NewReservation(ratelimit.Decision{}, nil), err
	}
	return ratelimit.NewReservation(res.Decision, func(actual int) error {
		_, err := over(r.link, nothing(func() error { return res.Settle(actual) }))
		return err
	}), err
}

func (r *remote) Wait(ctx context.Context, key string, cost int) error {
	_, err := over(r.link, nothing(func() error { return r.l.Wait(ctx, key, cost) }))
	return err
}

func (r *remote) Adjust(ctx context.Context, key string, delta int) error {
	_, err := over(r.link, nothing(func() error { return r.l.Adjust(ctx, key, delta) }))
	return err
}

func (r *remote) Reset(ctx context.Context, key string) error {
	_, err := over(r.link, nothing(func() error { return r.l.Reset(ctx, key) }))
	return err
}

func (r *remote) SetLimit(_ context.Context, limit ratelimit.Limit) error {
	_, err := over(r.link, nothing(func() error { return r.l.SetLimit(limit) }))
	return err
}

func (r *remote) Close() error { r.link.closed.Add(1); return nil }

// remoteConfig returns a remote engine's config. Its time only moves forward.
func remoteConfig(k *link) ratelimittest.Config {
	clock := new(ratelimittest.Clock)
	open := func(limit ratelimit.Limit) (*remote, error) {
		l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})
		if err != nil {
			return nil, err
		}
		k.opened.Add(1)
		return &remote{l: l, link: k}, nil
	}
	return ratelimittest.Config{
		Want:  []string{"Peek", "Reserve", "Wait", "Adjust", "Reset", "SetLimit"},
		Close: func(l limiter) error { return l.(*remote).Close() },
		TryAdvance: func(d time.Duration) error {
			if before, _ := k.fails(); before {
				return errDown
			}
			clock.Advance(d)
			return nil
		},
		New: func(limit ratelimit.Limit) (limiter, error) {
			r, err := open(limit)
			if err != nil {
				return nil, err
			}
			return r, nil
		},
		NewPair: func(limit ratelimit.Limit) (a, b limiter, err error) {
			r, err := open(limit)
			if err != nil {
				return nil, nil, err
			}
			k.opened.Add(1)
			return r, &remote{l: r.l, link: k}, nil
		},
	}
}

func TestARemoteEnginePasses(t *testing.T) {
	k := &link{}
	config := remoteConfig(k)
	config.Histories = 10
	ratelimittest.Run(t, config)
	assert.Equal(t, k.opened.Load(), k.closed.Load(), "limiters that were closed")
}

func TestErrorsOfARemoteEngineAreNoViolations(t *testing.T) {
	for _, test := range []struct {
		every     int64
		does      work
		histories int
	}{{10_007, sometimes, 10}, {1000, sometimes, 4}, {100, sometimes, 4}, {100, always, 2}, {100, never, 2}} {
		t.Run(fmt.Sprintf("one call in %d fails, and does its work: %q", test.every, test.does), func(t *testing.T) {
			t.Parallel()
			k := &link{every: test.every, does: test.does}
			config := remoteConfig(k)
			config.Histories, config.Retries = test.histories, 9
			assert.NoError(t, ratelimittest.Check(config))
			assert.Equal(t, k.opened.Load(), k.closed.Load(), "limiters that were closed")
			assert.Greater(t, k.calls.Load(), 10*k.every, "calls, of which at least 10 have failed")
		})
	}
}

// deserted leaves the booking of each third cancelled Wait in place, as if the context had ended before the store's answer.
type deserted struct {
	keyed
	waits *atomic.Int64
}

func (l deserted) Wait(ctx context.Context, key string, cost int) error {
	err := l.keyed.Wait(ctx, key, cost)
	if errors.Is(err, context.Canceled) && ctx.Err() != nil && cost > 0 && l.waits.Add(1)%3 == 0 {
		return errors.Join(l.Adjust(context.Background(), key, cost), fmt.Errorf("%w: %w", ratelimit.ErrUnanswered, err))
	}
	return err
}

func TestAWaitWhoseBookingIsNotAnsweredIsNoViolation(t *testing.T) {
	config, waits := ours(), new(atomic.Int64)
	config.NewBounded, config.NewFloat = nil, nil
	config.Histories = 5
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: config.Clock})
		return deserted{l, waits}, err
	}
	assert.NoError(t, ratelimittest.Check(config))
	assert.Greater(t, waits.Load(), int64(3))
}

// The suite finds a wrong engine even if its calls sometimes fail.
func TestAWrongEngineIsFoundThoughItsCallsFail(t *testing.T) {
	k := &link{every: 100}
	config := remoteConfig(k)
	clock := new(ratelimittest.Clock)
	config.Histories, config.Retries, config.NewPair, config.Close = 10, 9, nil, nil
	config.TryAdvance = func(d time.Duration) error { clock.Advance(d); return nil }
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		if err := limit.Validate(); err != nil {
			return nil, err
		}
		return &remote{l: fault(forgetsAfter(1000))(limit, clock).(local), link: k}, nil
	}
	assert.ErrorContains(t, ratelimittest.Check(config), "every decision of a long history")
}

func TestAnEngineThatIsNeverAvailableIsFoundOut(t *testing.T) {
	config := remoteConfig(&link{every: 1})
	config.Histories = 1
	assert.ErrorContains(t, ratelimittest.Check(config), "the promise that an engine can decide is broken by token-bucket")
}

func TestTimeThatDoesNotMoveIsFoundOut(t *testing.T) {
	config := remoteConfig(&link{})
	config.Histories = 2
	config.TryAdvance = func(time.Duration) error { return errors.New("no such command") }
	assert.ErrorContains(t, ratelimittest.Check(config), "no such command")
}

func TestClientsThatShareNothingAreFoundOut(t *testing.T) {
	config := remoteConfig(&link{})
	config.NewPair = func(limit ratelimit.Limit) (a, b limiter, err error) {
		if a, err = config.New(limit); err == nil {
			b, err = config.New(limit)
		}
		return a, b, err
	}
	config.Histories = 10
	assert.ErrorContains(t, ratelimittest.Check(config), "the promise that clients of one store share its budgets is broken by")
}

func TestAFailureToCloseIsFoundOut(t *testing.T) {
	config := remoteConfig(&link{})
	config.Histories = 1
	config.Close = func(limiter) error { return errors.New("connection lost") }
	assert.ErrorContains(t, ratelimittest.Check(config), "the promise of Close is broken by token-bucket")
}

func TestAMethodThatIsWantedMustBeFound(t *testing.T) {
	config := remoteConfig(&link{})
	config.Histories = 1
	config.Want = append(config.Want, "Sweep")
	assert.ErrorContains(t, ratelimittest.Check(config), "Config.Want has Sweep")
}

// noReserve has a Reserve that always fails.
type noReserve struct{ keyed }

func (l noReserve) Reserve(context.Context, string, int, time.Duration) (*ratelimit.Reservation, error) {
	return nil, errors.New("cannot reserve")
}

func TestAnEngineWithoutReservePassesIfDeclared(t *testing.T) {
	config := ours()
	config.Histories = 5
	config.NewBounded = nil
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		l, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: config.Clock})
		return noReserve{l}, err
	}
	assert.ErrorContains(t, ratelimittest.Check(config), "the promise of Reserve")
	config.Skip = []string{"Reserve"}
	assert.NoError(t, ratelimittest.Check(config))
}

// The engine returns one of two existing limiters.
func TestAnEngineWithAFixedSetOfLimitsPasses(t *testing.T) {
	config := ours()
	config.NewBounded, config.NewFloat = nil, nil
	config.Limits = []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerSecond(10), 20).Named("search"),
		ratelimit.SlidingLog(ratelimit.PerDay(5)).Named("login"),
	}
	config.New = func(limit ratelimit.Limit) (limiter, error) {
		if limit != config.Limits[0] && limit != config.Limits[1] {
			return nil, errors.New("no such limit")
		}
		return ratelimit.New(limit, &ratelimit.Options[string]{Clock: config.Clock})
	}
	assert.NoError(t, ratelimittest.Check(config))
}
