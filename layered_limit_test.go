package ratelimit_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// No call announces a change of a request's limit. Waiting calls follow the change within a second, first come, first served.
func TestWaitsOfAStackFollowTheLimitsOfRequestsWithinASecond(t *testing.T) {
	hourly := ratelimit.FixedWindow(ratelimit.PerHour(3))
	for name, c := range map[string]struct {
		after  ratelimit.Limit
		last   time.Duration // from the change until the last call is served, or has failed
		served int
	}{
		"a raise":            {ratelimit.FixedWindow(ratelimit.PerHour(6000)), 0, 300},
		"another algorithm":  {ratelimit.TokenBucket(ratelimit.PerSecond(100), 1), 2970 * time.Millisecond, 300},
		"unlimited":          {ratelimit.Unlimited(), 0, 300},
		"blocked":            {ratelimit.Blocked(), 0, 3},
		"unlimited, for all": {ratelimit.Unlimited().Named("all"), 0, 300},
	} {
		for _, newcomer := range []bool{false, true} {
			t.Run(name, func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) {
					var limit atomic.Pointer[ratelimit.Limit]
					limit.Store(&hourly)
					y := ratelimit.By(ratelimit.Must(ratelimit.New[string](hourly, nil)), func(user string) (string, error) { return user, nil })
					y.Limit = func(string) ratelimit.Limit { return *limit.Load() }
					stack := ratelimit.Must(ratelimit.All(y))
					ctx, cancel := context.WithTimeout(t.Context(), 200*time.Hour)
					defer cancel()
					begin := time.Now()
					var wg sync.WaitGroup
					var served, last atomic.Int64
					for range 300 {
						wg.Go(func() {
							if stack.Wait(ctx, "ann", 1) == nil {
								served.Add(1)
							}
							last.Store(int64(time.Since(begin)))
						})
					}
					time.Sleep(2*time.Second + time.Millisecond)
					require.EqualValues(t, 3, served.Load())
					limit.Store(&c.after)
					if newcomer {
						stack.Allow("ann", 1)
					}
					wg.Wait()
					require.EqualValues(t, c.served, served.Load())
					require.InDelta(t, 2*time.Second+c.last, time.Duration(last.Load()), float64(1100*time.Millisecond))
				})
			})
		}
	}
}
