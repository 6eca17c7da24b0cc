package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// The code of docs/recipes.md.

func Example_pacing() {
	ctx := context.Background()
	pace := ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), nil))
	start := time.Now()
	for range 4 { // the steps of the job
		if err := pace.Wait(ctx, 1); err != nil {
			fmt.Println(err)
			return
		}
	}
	fmt.Println("four steps took at least 30ms:", time.Since(start) >= 30*time.Millisecond)
	// Output: four steps took at least 30ms: true
}

func Example_boundedQueue() {
	ctx := context.Background()
	backend := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerMinute(1), 2), nil))
	fmt.Println(backend.Wait(ctx, "backend", 1)) // in service for a minute
	fmt.Println(backend.Allow("backend", 1))     // the only one that may wait
	err := backend.Wait(ctx, "backend", 1)
	fmt.Println(errors.Is(err, ratelimit.ErrLimited))
	// Output:
	// <nil>
	// true
	// true
}

// Signup is code that uses a limiter: it takes it as an interface.
type Signup struct {
	Limit ratelimit.Limiter[string]
}

func (s *Signup) SendCode(phone string) error {
	if !s.Limit.Allow(phone, 1) {
		return errors.New("try again later")
	}
	return nil
}

func TestSignupSendsThreeCodesAnHour(t *testing.T) {
	clock := new(ratelimittest.Clock)
	limit, err := ratelimit.New(ratelimit.SlidingLog(ratelimit.PerHour(3)), &ratelimit.Options[string]{Clock: clock})
	require.NoError(t, err)
	signup := &Signup{Limit: limit}

	for range 3 {
		require.NoError(t, signup.SendCode("555-0100"))
	}
	require.Error(t, signup.SendCode("555-0100"))
	clock.Advance(time.Hour)
	require.NoError(t, signup.SendCode("555-0100"))
}

func TestAnExportWritesTenRowsASecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(10), 1), nil))
		start := time.Now()
		for range 101 {
			require.NoError(t, limit.Wait(t.Context(), "export", 1))
		}
		assert.Equal(t, 10*time.Second, time.Since(start)) // exactly, and at once
	})
}

// admitted returns how many of a greedy key's requests pass in the first minute, and at most in any other.
func admitted(limit ratelimit.Limit) (first, most int) {
	clock := new(ratelimittest.Clock)
	l := ratelimit.Must(ratelimit.NewSingle(limit, &ratelimit.Options[struct{}]{Clock: clock}))
	var passed []time.Duration
	for clock.Now() < 10*time.Minute {
		for l.Allow(1) {
			passed = append(passed, clock.Now())
		}
		clock.Advance(10 * time.Millisecond)
	}
	for i, begin := range passed {
		n := 0
		for _, at := range passed[i:] {
			if at-begin < time.Minute {
				n++
			}
		}
		if i == 0 {
			first = n
		}
		most = max(most, n)
	}
	return first, most
}

// The figures of docs/recipes.md, "Choose a burst".
func TestHowManyPassInAMinute(t *testing.T) {
	for _, row := range []struct {
		limit       ratelimit.Limit
		first, most int
	}{
		{ratelimit.TokenBucket(ratelimit.PerMinute(100), 100), 199, 199},
		{ratelimit.TokenBucket(ratelimit.PerMinute(50), 50), 99, 99},
		{ratelimit.TokenBucket(ratelimit.PerMinute(91), 10), 100, 100},
		{ratelimit.TokenBucket(ratelimit.PerMinute(100), 1), 100, 100},
		{ratelimit.SlidingLog(ratelimit.PerMinute(100)), 100, 100},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), 100, 100},
	} {
		first, most := admitted(row.limit)
		assert.Equal(t, row.first, first, "%v", row.limit)
		assert.Equal(t, row.most, most, "%v", row.limit)
	}
}
