package ratelimittest_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// UnitsEngine is a limiter of units in use, written with package ratelimit's exported names alone.
type UnitsEngine struct {
	limit ratelimit.Limit
	clock ratelimit.Clock
	bug   string

	mu   sync.Mutex // guards keys and their reservations
	keys map[string]map[*usedUnits]bool
}

type usedUnits struct {
	n    int
	ends time.Duration
}

func newUnitsEngine(limit ratelimit.Limit, clock ratelimit.Clock, bug string) (*UnitsEngine, error) {
	if err := limit.Validate(); err != nil {
		return nil, err
	}
	if limit.Algorithm != ratelimit.AlgorithmConcurrent {
		return nil, fmt.Errorf("%w: UnitsEngine counts units in use, and the limit is a %v", ratelimit.ErrInvalidLimit, limit.Algorithm)
	}
	return &UnitsEngine{limit: limit, clock: clock, bug: bug, keys: make(map[string]map[*usedUnits]bool)}, nil
}

var errNoEnd = errors.New("units are held until their work has ended: use Reserve")

func (e *UnitsEngine) Allow(key string, cost int) bool {
	d, err := e.Take(context.Background(), key, cost)
	return err == nil && d.Allowed
}

func (e *UnitsEngine) Take(_ context.Context, key string, cost int) (ratelimit.Decision, error) {
	if cost > 0 && e.bug != "Take" {
		return ratelimit.Decision{Limit: e.limit}, errNoEnd
	}
	r, err := e.Reserve(context.Background(), key, cost, 0)
	return r.Decision, err
}

func (e *UnitsEngine) Reserve(_ context.Context, key string, cost int, _ time.Duration) (*ratelimit.Reservation, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	d := ratelimit.Decision{Limit: e.limit}
	switch {
	case cost < 0:
		return ratelimit.NewReservation(d, nil), ratelimit.ErrNegativeCost
	case cost > e.limit.Capacity():
		return ratelimit.NewReservation(d, nil), ratelimit.ErrExceedsLimit
	}
	now, all, used := e.clock.Now(), e.keys[key], 0
	if all == nil {
		all = make(map[*usedUnits]bool)
		e.keys[key] = all
	}
	for u := range all {
		if used += u.n; u.ends <= now {
			used -= u.n
			delete(all, u)
		}
	}
	u := &usedUnits{cost, now + e.limit.Rate.Per}
	if d.Allowed = used+cost <= e.limit.Capacity(); d.Allowed {
		used += cost
		all[u] = true
	} else {
		d.RetryAfter = e.limit.Rate.Per
	}
	if d.Remaining = e.limit.Capacity() - used; used > 0 {
		d.ResetAfter = e.limit.Rate.Per
	}
	settle := func(actual int) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.bug != "Settle" || actual == 0 {
			delete(all, u)
		}
		return nil
	}
	extend := func(context.Context) error {
		e.mu.Lock()
		defer e.mu.Unlock()
		if now := e.clock.Now(); all[u] && u.ends > now {
			if e.bug != "Extend" {
				u.ends = now + e.limit.Rate.Per
			}
			return nil
		}
		return ratelimit.ErrLost
	}
	return ratelimit.NewReservation(d, settle, extend), nil
}

func unitsConfig(bug string) ratelimittest.Config {
	clock := new(ratelimittest.Clock)
	return ratelimittest.Config{Clock: clock, Want: []string{"Concurrent", "Reserve"}, Histories: 20, Seed: 1,
		Accepts: func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmConcurrent },
		New: func(l ratelimit.Limit) (ratelimit.Limiter[string], error) {
			return newUnitsEngine(l, clock, bug)
		}}
}

func TestAnEngineOfAnotherAuthorCountsUnitsInUse(t *testing.T) {
	require.NoError(t, ratelimittest.Check(unitsConfig("")))
	for bug, want := range map[string]string{"Take": "Take has no end", "Settle": "units are in use", "Extend": "Extend of units that are held fails"} {
		assert.ErrorContains(t, ratelimittest.Check(unitsConfig(bug)), want, bug)
	}
}

func TestConcurrentIsWantedOrSkippedByName(t *testing.T) {
	clock := new(ratelimittest.Clock)
	c := ratelimittest.Config{Clock: clock, Want: []string{"Concurrent"}, Histories: 1,
		Accepts: func(l ratelimit.Limit) bool { return l.Algorithm == ratelimit.AlgorithmSlidingLog },
		New: func(l ratelimit.Limit) (ratelimit.Limiter[string], error) {
			return NewLogEngine(l, clock, func() error { return nil })
		}}
	assert.ErrorContains(t, ratelimittest.Check(c), "Config.Want has Concurrent, and none are tried")
	c.Want = nil
	assert.NoError(t, ratelimittest.Check(c))
}
