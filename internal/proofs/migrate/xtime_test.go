package migrate

import (
	"context"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func single(t *testing.T, limit ratelimit.Limit) *ratelimit.Single {
	s, err := ratelimit.NewSingle(limit, nil)
	require.NoError(t, err)
	return s
}

// TestXTimeConstructors makes each limit with both libraries, and counts how many requests pass at once and within a second.
func TestXTimeConstructors(t *testing.T) {
	const d = 125 * time.Millisecond
	for name, make := range map[string]func() (*rate.Limiter, *ratelimit.Single, error){
		"a rate": func() (*rate.Limiter, *ratelimit.Single, error) {
			theirs := rate.NewLimiter(8, 4)
			ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(8), 4), nil)
			return theirs, ours, err
		},
		"an interval": func() (*rate.Limiter, *ratelimit.Single, error) {
			theirs := rate.NewLimiter(rate.Every(d), 4)
			ours, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.Per(1, d), 4), nil)
			return theirs, ours, err
		},
		"no limit": func() (*rate.Limiter, *ratelimit.Single, error) {
			theirs := rate.NewLimiter(rate.Inf, 0)
			ours, err := ratelimit.NewSingle(ratelimit.Unlimited(), nil)
			return theirs, ours, err
		},
		"nothing": func() (*rate.Limiter, *ratelimit.Single, error) {
			theirs := rate.NewLimiter(0, 0)
			ours, err := ratelimit.NewSingle(ratelimit.Blocked(), nil)
			return theirs, ours, err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, ours, err := make()
			require.NoError(t, err)
			for range 9 {
				for range 6 {
					assert.Equal(t, theirs.Allow(), ours.Allow(1), name)
				}
				time.Sleep(d)
			}
		})
	}
}

// TestXTimeCalls makes calls to both at random times. With these rates and times, floating point is exact.
func TestXTimeCalls(t *testing.T) {
	for seed := range uint64(200) {
		synctest.Test(t, func(t *testing.T) {
			rng := rand.New(rand.NewPCG(seed, 0))
			theirs := rate.NewLimiter(8, 8)
			ours := single(t, ratelimit.TokenBucket(ratelimit.PerSecond(8), 8))
			for i := range 100 {
				n := 1 + rng.IntN(9)
				switch rng.IntN(5) {
				case 0:
					assert.Equal(t, theirs.AllowN(time.Now(), n), ours.Allow(n), "seed %d, call %d: Allow %d", seed, i, n)
				case 1:
					ctx := context.Background()
					d, err := ours.Peek(ctx, 0)
					require.NoError(t, err)
					assert.Equal(t, max(0, int(theirs.Tokens())), d.Remaining, "seed %d, call %d", seed, i)
				case 2:
					const maxDelay = 24 * time.Hour
					r := theirs.ReserveN(time.Now(), n)
					res, err := ours.Reserve(context.Background(), n, maxDelay)
					assert.Equal(t, r.OK(), err == nil && res.Allowed, "seed %d, call %d: Reserve %d", seed, i, n)
					if r.OK() {
						assert.Equal(t, r.Delay(), res.Delay, "seed %d, call %d: Reserve %d", seed, i, n)
						if rng.IntN(2) == 0 && r.Delay() > 0 { // the last reservation, and its time has not come
							r.Cancel()
							require.NoError(t, res.Cancel())
						}
					}
				case 3:
					// If a deadline falls on a turn's instant, either may come first, in both libraries.
					ctx, cancel := context.WithTimeout(context.Background(), time.Duration(rng.IntN(16))*125*time.Millisecond+time.Millisecond)
					theirErr := make(chan error)
					go func() { theirErr <- theirs.WaitN(ctx, n) }()
					ourErr := ours.Wait(ctx, n)
					assert.Equal(t, <-theirErr == nil, ourErr == nil, "seed %d, call %d: Wait %d", seed, i, n)
					cancel()
				case 4:
					time.Sleep(time.Duration(rng.IntN(16)) * 125 * time.Millisecond)
				}
			}
		})
	}
}

func TestXTimeWaitAndSetLimit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		theirs, ours := rate.NewLimiter(8, 4), single(t, ratelimit.TokenBucket(ratelimit.PerSecond(8), 4))
		start := time.Now()
		for range 12 {
			require.NoError(t, theirs.Wait(ctx))
		}
		took := time.Since(start)
		for range 12 {
			require.NoError(t, ours.Wait(ctx, 1))
		}
		assert.Equal(t, took, time.Since(start)-took)

		theirs.SetLimit(16)
		theirs.SetBurst(6)
		require.NoError(t, ours.SetLimit(ratelimit.TokenBucket(ratelimit.PerSecond(16), 6)))
		time.Sleep(time.Minute)
		for range 10 {
			assert.Equal(t, theirs.Allow(), ours.Allow(1))
		}
		assert.Equal(t, rate.Limit(16), theirs.Limit())
		assert.Equal(t, 6, theirs.Burst())
		assert.Equal(t, ratelimit.TokenBucket(ratelimit.PerSecond(16), 6), ours.Describe().Limits[0])
	})
}

// Most programs keep x/time/rate limiters in a map.
func TestXTimeMapOfLimiters(t *testing.T) {
	theirs := map[string]*rate.Limiter{}
	ours := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(8), 4), nil))
	for _, key := range []string{"ann", "bob", "ann", "ann", "ann", "ann"} {
		if theirs[key] == nil {
			theirs[key] = rate.NewLimiter(8, 4)
		}
		assert.Equal(t, theirs[key].Allow(), ours.Allow(key, 1))
	}
}

// TestXTimeReadingsOutOfOrder: goroutines read the clock before they lock, so a later one
// may have an earlier reading. x/time/rate then steps back, and regains the same time again.
func TestXTimeReadingsOutOfOrder(t *testing.T) {
	now := time.Now()
	theirs := rate.NewLimiter(2000, 2)
	clock := new(ratelimittest.Clock)
	ours := ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(2000), 2),
		&ratelimit.Options[struct{}]{Clock: clock}))
	passed, oursPassed := 0, 0
	for i := range 10_000 {
		at := time.Duration(i%2) * time.Millisecond
		clock.Set(at)
		if theirs.AllowN(now.Add(at), 1) {
			passed++
		}
		if ours.Allow(1) {
			oursPassed++
		}
	}
	assert.Equal(t, 10_000, passed)
	assert.Equal(t, 3, oursPassed) // one, and the whole burst again a millisecond later
}

func TestXTimeCostsBelowZero(t *testing.T) {
	theirs, ours := rate.NewLimiter(1, 10), single(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10))
	now := time.Now()
	require.True(t, theirs.AllowN(now, 10))
	require.True(t, ours.Allow(10))
	assert.True(t, theirs.AllowN(now, -5))
	assert.True(t, theirs.AllowN(now, 5), "-5 has given back 5")
	_, err := ours.Take(t.Context(), -5)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	assert.False(t, ours.Allow(5))
}

func TestXTimeHighRates(t *testing.T) {
	theirs := rate.NewLimiter(1e12, 1)
	clock := new(ratelimittest.Clock)
	ours := ratelimit.Must(ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.Per(1000, time.Nanosecond), 1),
		&ratelimit.Options[struct{}]{Clock: clock}))
	now, passed, oursPassed := time.Now(), 0, 0
	for range 2000 {
		if theirs.AllowN(now, 1) {
			passed++
		}
		if ours.Allow(1) {
			oursPassed++
		}
	}
	assert.Equal(t, 1000, passed, "of a burst of 1, at one instant")
	assert.Equal(t, 1, oursPassed)
}

func TestXTimeCancelAfterItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs, ours := rate.NewLimiter(1, 10), single(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 10))
		r := theirs.ReserveN(time.Now(), 10)
		res, err := ours.Reserve(t.Context(), 10, 0)
		require.NoError(t, err)
		time.Sleep(time.Second)
		r.Cancel()
		require.NoError(t, res.Cancel())
		d, err := ours.Peek(context.Background(), 0)
		require.NoError(t, err)
		assert.InDelta(t, 1, theirs.Tokens(), 1e-9, "only what was regained")
		assert.Equal(t, 10, d.Remaining, "nine given back, and one regained")
	})
}

func TestXTimeWaitErrors(t *testing.T) {
	theirs, ours := rate.NewLimiter(rate.Every(time.Hour), 1), single(t, ratelimit.TokenBucket(ratelimit.PerHour(1), 1))
	theirs.Allow()
	ours.Allow(1)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute) // the context outlasts the calls
	defer cancel()
	err := theirs.Wait(ctx)
	require.Error(t, err)
	require.NotErrorIs(t, err, context.DeadlineExceeded)
	require.ErrorIs(t, ours.Wait(ctx, 1), context.DeadlineExceeded)

	require.Error(t, theirs.WaitN(t.Context(), 2))
	require.ErrorIs(t, ours.Wait(t.Context(), 2), ratelimit.ErrExceedsLimit)
}

func TestXTimeCostsOfZero(t *testing.T) {
	theirs, ours := rate.NewLimiter(1, 1), single(t, ratelimit.TokenBucket(ratelimit.PerSecond(1), 1))
	for range 2 {
		theirs.Reserve()
		_, err := ours.Reserve(t.Context(), 1, time.Hour)
		require.NoError(t, err)
	}
	assert.False(t, theirs.AllowN(time.Now(), 0), "somebody has booked ahead")
	assert.True(t, ours.Allow(0))
}

func TestXTimeRateOfZero(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		theirs := rate.NewLimiter(0, 3)
		time.Sleep(time.Hour)
		for i := range 5 {
			assert.Equal(t, i < 3, theirs.Allow())
		}
		_, err := ratelimit.NewSingle(ratelimit.TokenBucket(ratelimit.PerSecond(0), 3), nil)
		require.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
	})
}
