package migrate

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	uber "go.uber.org/ratelimit"

	"github.com/weir-go/ratelimit"
)

// takes calls wait n times. It returns how long after the first call each one ended.
func takes(n int, wait func()) []time.Duration {
	var at []time.Duration
	start := time.Now()
	for range n {
		wait()
		at = append(at, time.Since(start))
	}
	return at
}

// TestUberTake compares when calls pass, from the start and after a pause.
func TestUberTake(t *testing.T) {
	for name, make := range map[string]func() (uber.Limiter, *ratelimit.Single, error){
		"without slack": func() (uber.Limiter, *ratelimit.Single, error) {
			theirs := uber.New(100, uber.WithoutSlack)
			ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), nil)
			return theirs, ours, err
		},
		"per minute": func() (uber.Limiter, *ratelimit.Single, error) {
			theirs := uber.New(60, uber.Per(time.Minute), uber.WithoutSlack)
			ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerMinute(60), 1), nil)
			return theirs, ours, err
		},
		"no limit": func() (uber.Limiter, *ratelimit.Single, error) {
			theirs := uber.NewUnlimited()
			ours, err := ratelimit.NewSingle(ratelimit.Unlimited(), nil)
			return theirs, ours, err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, ours, err := make()
			require.NoError(t, err)
			ctx := t.Context()
			for range 2 {
				want := takes(20, func() { theirs.Take() })
				got := takes(20, func() {
					if err := ours.Wait(ctx, 1); err != nil {
						t.Error(err)
					}
				})
				assert.Equal(t, want, got, name)
				time.Sleep(time.Hour)
			}
		})
	}
}

// TestUberSlack: by default, ten calls that were not made can be made at once
// later, so the burst is 11. But a new limiter of theirs has no burst yet.
func TestUberSlack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs := uber.New(100)
		ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(100), 11), nil)
		require.NoError(t, err)
		wait := func() { require.NoError(t, ours.Wait(t.Context(), 1)) }

		assert.Equal(t, 90*time.Millisecond, takes(10, func() { theirs.Take() })[9], "no burst at first")
		assert.Zero(t, takes(11, wait)[10])
		ours.Reset(context.Background())
		require.NoError(t, ours.Adjust(context.Background(), 10)) // as if the burst had been spent
		assert.Equal(t, 90*time.Millisecond, takes(10, wait)[9])

		time.Sleep(time.Hour)
		want := takes(20, func() { theirs.Take() })
		time.Sleep(time.Hour)
		assert.Equal(t, want, takes(20, wait), "after a pause they are alike")
		assert.Zero(t, want[10])
		assert.Equal(t, 10*time.Millisecond, want[11])
	})
}

// TestUberCannotBeLeft: Take has no context.
func TestUberCannotBeLeft(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerHour(1), 1), nil)
		require.NoError(t, err)
		require.NoError(t, ours.Wait(t.Context(), 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		start := time.Now()
		require.ErrorIs(t, ours.Wait(ctx, 1), context.DeadlineExceeded)
		assert.Zero(t, time.Since(start), "at once, as the deadline comes first")

		theirs := uber.New(1, uber.Per(time.Hour), uber.WithoutSlack)
		assert.Equal(t, []time.Duration{0, time.Hour}, takes(2, func() { theirs.Take() }))
	})
}

// TestUberDividesWholeNumbers: the interval is a whole number of nanoseconds, and may be 0.
func TestUberDividesWholeNumbers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs := uber.New(2, uber.Per(time.Nanosecond), uber.WithoutSlack)
		assert.Zero(t, takes(1000, func() { theirs.Take() })[999], "no limit at all")
		ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.Per(2, time.Nanosecond), 1), nil)
		require.NoError(t, err)
		assert.True(t, ours.Allow(1))
		assert.False(t, ours.Allow(1), "two in a nanosecond, and not at one instant")

		assert.Panics(t, func() { uber.New(0) })
		_, err = ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(0), 1), nil)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	})
}
