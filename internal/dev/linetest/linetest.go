// Package linetest tests calls that wait while their budget changes. One table of changes serves all ways to wait.
package linetest

import (
	"context"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// Budget is a limiter. The calls wait for its key "k".
type Budget interface {
	ratelimit.Reserver[string]
	SetLimit(limit ratelimit.Limit) error
	Adjust(ctx context.Context, key string, delta int) error
	Reset(ctx context.Context, key string) error
}

// Way is a way to wait for a budget, for example Wait or a middleware's hold.
type Way struct {
	// New returns a budget, and a function that waits for it.
	New func(t *testing.T, limit ratelimit.Limit) (Budget, func(ctx context.Context, cost int) error)

	Late   time.Duration // the maximum time until a call notices a change
	Booked time.Duration // how far ahead a booking keeps its instant
	Kept   int           // how many units of a burst a shared budget keeps for others; such a budget has only a rate and a burst
}

// queue is one test's waiting calls.
type queue struct {
	*testing.T
	way    Way
	budget Budget
	wait   func(ctx context.Context, cost int) error
	wg     sync.WaitGroup
	mu     sync.Mutex // guards the fields below
	served int
	errs   []error
}

// comes adds n waiting calls.
func (q *queue) comes(ctx context.Context, n, cost int) {
	for range n {
		q.wg.Go(func() {
			err := q.wait(ctx, cost)
			q.mu.Lock()
			defer q.mu.Unlock()
			if err != nil {
				q.errs = append(q.errs, err)
			} else {
				q.served++
			}
		})
		synctest.Wait()
	}
}

// requireServed checks the number of served calls.
func (q *queue) requireServed(least, most int) {
	q.Helper()
	synctest.Wait()
	q.mu.Lock()
	defer q.mu.Unlock()
	require.GreaterOrEqual(q, q.served, least)
	require.LessOrEqual(q, q.served, most)
}

// set changes the limit.
func (q *queue) set(limit ratelimit.Limit) { require.NoError(q, q.budget.SetLimit(limit)) }

// bucket returns a token bucket with a rate per second.
func bucket(rate, burst int) ratelimit.Limit {
	return ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst)
}

// changes are changes of a fully spent budget.
var changes = []struct {
	name  string
	limit ratelimit.Limit
	kinds bool // whether the test needs other kinds of limits, impossible for a shared budget
	test  func(q *queue)
}{
	{"a raise", bucket(1, 1), false, func(q *queue) {
		q.comes(q.Context(), 100, 1)
		q.set(bucket(100, 1))
		time.Sleep(5 * time.Second)
		q.requireServed(100, 100)
	}},
	{"a raise of a slow limit", ratelimit.TokenBucket(ratelimit.PerHour(1), 1), false, func(q *queue) {
		q.comes(q.Context(), 100, 1)
		q.set(bucket(100, 1))
		time.Sleep(5 * time.Second)
		q.requireServed(100, 100)
	}},
	{"a brake", bucket(100, 1), false, func(q *queue) {
		q.comes(q.Context(), 120, 1)
		q.set(bucket(10, 1))
		time.Sleep(5 * time.Second)
		booked := int(q.way.Booked * 100 / time.Second)
		q.requireServed(48, 52+booked)
		time.Sleep(5 * time.Second)
		q.requireServed(96, 102+booked)
	}},
	{"a blocked key", bucket(1, 1), true, func(q *queue) {
		q.comes(q.Context(), 20, 1)
		begin := time.Now()
		q.set(ratelimit.Blocked())
		q.wg.Wait()
		require.LessOrEqual(q, time.Since(begin), q.way.Late)
		require.Len(q, q.errs, 20)
		for _, err := range q.errs {
			require.ErrorIs(q, err, ratelimit.ErrBlocked)
		}
	}},
	{"a key without a limit", ratelimit.TokenBucket(ratelimit.PerHour(1), 1), true, func(q *queue) {
		q.comes(q.Context(), 20, 1)
		q.set(ratelimit.Unlimited())
		time.Sleep(q.way.Late)
		q.requireServed(20, 20)
	}},
	{"a limit below the cost", ratelimit.TokenBucket(ratelimit.PerHour(10), 10), false, func(q *queue) {
		q.comes(q.Context(), 1, 8)
		begin := time.Now()
		q.set(ratelimit.TokenBucket(ratelimit.PerHour(10), 5))
		q.wg.Wait()
		require.LessOrEqual(q, time.Since(begin), q.way.Late)
		require.ErrorIs(q, q.errs[0], ratelimit.ErrExceedsLimit)
	}},
	{"a grant", ratelimit.TokenBucket(ratelimit.PerHour(10), 10), false, func(q *queue) {
		q.comes(q.Context(), 5, 1)
		require.NoError(q, q.budget.Adjust(q.Context(), "k", -3))
		time.Sleep(q.way.Late)
		q.requireServed(3-q.way.Kept, 3)
		time.Sleep(6 * time.Minute)
		q.requireServed(4-q.way.Kept, 4)
	}},
	{"a reset", ratelimit.TokenBucket(ratelimit.PerHour(10), 10), false, func(q *queue) {
		q.comes(q.Context(), 12, 1)
		require.NoError(q, q.budget.Reset(q.Context(), "k"))
		time.Sleep(q.way.Late)
		q.requireServed(10-q.way.Kept, 10)
	}},
	{"a debt", ratelimit.TokenBucket(ratelimit.PerHour(10), 10), true, func(q *queue) {
		q.comes(q.Context(), 2, 1)
		require.NoError(q, q.budget.Adjust(q.Context(), "k", 2))
		time.Sleep(17 * time.Minute)
		q.requireServed(0, 0)
		time.Sleep(7*time.Minute + q.way.Late)
		q.requireServed(2, 2)
	}},
}

// Test tests each change.
func (w Way) Test(t *testing.T) {
	for _, c := range changes {
		if c.kinds && w.Kept > 0 {
			continue
		}
		w.run(t, c.name, c.limit, func(q *queue) {
			require.True(q, q.budget.Allow("k", c.limit.Capacity()))
			c.test(q)
		})
	}
	w.run(t, "a settlement and a leaver", ratelimit.TokenBucket(ratelimit.PerHour(10), 10), func(q *queue) {
		r, err := q.budget.Reserve(q.Context(), "k", 10, 0)
		require.NoError(q, err)
		gone, leave := context.WithCancel(q.Context())
		q.comes(gone, 1, 5)
		q.comes(q.Context(), 6, 1)
		leave()
		synctest.Wait()
		require.Len(q, q.errs, 1)
		require.ErrorIs(q, q.errs[0], context.Canceled)
		require.NoError(q, r.Settle(6))
		time.Sleep(q.way.Late)
		q.requireServed(4-q.way.Kept, 4)
		time.Sleep(6 * time.Minute)
		q.requireServed(5-q.way.Kept, 5)
	})
}

// run runs one test. Calls still waiting at its end are served or cancelled.
func (w Way) run(t *testing.T, name string, limit ratelimit.Limit, test func(q *queue)) {
	t.Run(name, func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			budget, wait := w.New(t, limit)
			ctx, end := context.WithCancel(t.Context())
			defer end()
			q := &queue{T: t, way: w, budget: budget}
			q.wait = func(c context.Context, cost int) error {
				c, cancel := context.WithCancel(c)
				defer cancel()
				defer context.AfterFunc(ctx, cancel)()
				return wait(c, cost)
			}
			test(q)
			end()
			q.wg.Wait()
		})
	})
}
