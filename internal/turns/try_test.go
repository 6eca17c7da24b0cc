package turns_test

import (
	"context"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/internal/turns"
)

// tries is a budget behind a round trip. It allows or denies calls, and has no bookings.
type tries struct {
	l     *ratelimit.Keyed[string]
	trip  time.Duration
	lines turns.Lines[string]

	mu     sync.Mutex
	calls  int
	early  int
	served []int
}

func newTries(limit ratelimit.Limit, trip time.Duration) *tries {
	return &tries{l: ratelimit.Must(ratelimit.New[string](limit, nil)), trip: trip}
}

func (s *tries) try(ctx context.Context, number, cost int) error {
	err := s.lines.Try(ctx, []turns.Budget[string]{{Key: "k", Cost: cost}}, func(q turns.Request) (turns.Answer[string], error) {
		time.Sleep(s.trip / 2)
		d, err := s.l.Take(context.Background(), "k", cost)
		s.mu.Lock()
		defer s.mu.Unlock()
		if s.calls++; q.Early {
			s.early++
		}
		time.Sleep(s.trip / 2)
		return turns.Answer[string]{Allowed: d.Allowed, Retry: d.RetryAfter, Remaining: d.Remaining, Pace: outcome.PaceOf(d.Limit), Line: "k", Cost: cost}, err
	})
	if err == nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.served = append(s.served, number)
	}
	return err
}

func (s *tries) made() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.calls
}

// come starts n callers, one after the other, and returns a function to wait for their end.
func (s *tries) come(ctx context.Context, n int) (wait func()) {
	var all sync.WaitGroup
	for i := range n {
		all.Go(func() { _ = s.try(ctx, i, 1) })
		time.Sleep(s.trip + time.Microsecond)
		synctest.Wait()
	}
	return all.Wait
}

// Callers wait behind others already in line. The line's calls contain
// the cost for the busy budget, so each caller needs only one call.
func TestTriesBehindOthersCallWhenTheBudgetHasTheirCost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTries(ratelimit.TokenBucket(ratelimit.PerSecond(4), 1), 0)
		s.come(t.Context(), 100)()
		assert.True(t, slices.IsSorted(s.served), "%v", s.served)
		assert.Len(t, s.served, 100)
		assert.LessOrEqual(t, s.calls, 102, "one for each, and the first waiter's denial")
	})
}

// After Moved the first caller tries before the time in its denial, and the call is marked as an early one.
func TestTheFirstTriesAtOnceWhenTheBudgetMayHaveGrown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTries(ratelimit.TokenBucket(ratelimit.PerHour(1), 10), 0)
		require.True(t, s.l.Allow("k", 10))
		done := s.come(t.Context(), 5)
		time.Sleep(2500 * time.Millisecond) // it has tried twice
		before := s.made()
		require.NoError(t, s.l.Adjust(t.Context(), "k", -5))
		begin := time.Now()
		s.lines.Moved("k")
		done()
		assert.Zero(t, time.Since(begin))
		assert.Equal(t, 0, s.served[0], "the others follow at the same instant")
		assert.Len(t, s.served, 5)
		assert.Equal(t, 5, s.made()-before)
		assert.Positive(t, s.early)
	})
}

// A limit is lowered while calls wait. Calls that can no longer be
// served in time fail within a second, when the first one tries.
func TestTriesThatBecomeTooLateFail(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newTries(ratelimit.TokenBucket(ratelimit.PerMinute(6), 1), 0)
		require.True(t, s.l.Allow("k", 1))
		patient, cancel := context.WithCancel(t.Context())
		defer cancel()
		go func() { _ = s.try(patient, 0, 1) }()
		synctest.Wait()
		ctx, end := context.WithTimeout(t.Context(), 10*time.Minute)
		defer end()
		errs := make(chan error, 20)
		for i := range cap(errs) {
			go func() { errs <- s.try(ctx, 1+i, 1) }()
		}
		time.Sleep(time.Second / 2)
		require.NoError(t, s.l.SetLimit(ratelimit.TokenBucket(ratelimit.PerHour(1), 1)))
		begin := time.Now()
		for range cap(errs) {
			var late *turns.LateError
			require.ErrorAs(t, <-errs, &late)
			assert.Greater(t, late.In, 50*time.Minute)
		}
		assert.LessOrEqual(t, time.Since(begin), turns.Horizon)
		assert.Empty(t, s.served, "the patient caller waits on")
	})
}
