package fair_test

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/fair"
)

// One tenant works alone through the night, so nearly the whole burst is its debt. At nine o'clock
// nine others come. The first tenant's share is now a tenth, and would take seven minutes to pay
// that debt. But nobody else wanted the rate at night, so it gets its share like the others.
func TestATenantThatWorkedAloneAtNightGetsItsShareInTheMorning(t *testing.T) {
	for _, weight := range []int{1, 5} { // the first tenant's weight
		synctest.Test(t, func(t *testing.T) {
			weigh := func(tenant int) int {
				if tenant == 0 {
					return weight
				}
				return 1
			}
			l := ratelimit.Must(fair.New(ratelimit.TokenBucket(ratelimit.PerMinute(60_000), 54_000), &fair.Options[int]{Weight: weigh}))
			ctx, cancel := context.WithCancel(t.Context())
			var granted [10]atomic.Int64
			var all sync.WaitGroup
			work := func(tenant int) {
				for range 4 {
					all.Go(func() {
						for ctx.Err() == nil {
							switch r, err := l.Reserve(ctx, tenant, 1000, 20*time.Second); {
							case err == nil && r.Allowed:
								granted[tenant].Add(1000)
							case err == nil:
								time.Sleep(r.RetryAfter)
							}
						}
					})
				}
			}
			work(0)
			time.Sleep(10 * time.Minute)
			for tenant := 1; tenant < 10; tenant++ {
				work(tenant)
			}
			time.Sleep(time.Minute)
			var before [10]int64
			for tenant := range granted {
				before[tenant] = granted[tenant].Load()
			}
			time.Sleep(5 * time.Minute)
			for tenant := range granted {
				share := 300_000 * float64(weigh(tenant)) / float64(weight+9)
				assert.Greater(t, float64(granted[tenant].Load()-before[tenant]), 0.93*share, "tenant %d, first tenant's weight %d", tenant, weight)
			}
			cancel()
			all.Wait()
		})
	}
}

// An overrun bars a tenant until its own share has paid for it. RetryAfter ends just then, so the tenant need not poll.
func TestRetryAfterOfABarredTenantIsTheTimeInWhichItsSharePays(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(fair.New[int](ratelimit.TokenBucket(ratelimit.PerSecond(1000), 2500), nil))
		ctx, cancel := context.WithCancel(t.Context())
		var all sync.WaitGroup
		for tenant := 1; tenant < 5; tenant++ {
			all.Go(func() {
				for ctx.Err() == nil {
					_ = l.Wait(ctx, tenant, 10)
				}
			})
		}
		time.Sleep(5 * time.Second)
		r, err := l.Reserve(ctx, 0, 10, 5*time.Second)
		require.NoError(t, err)
		require.NoError(t, r.Settle(10_000))
		tries, began, first := 0, time.Now(), time.Duration(0)
		for {
			d, err := l.Take(ctx, 0, 10)
			require.NoError(t, err)
			if d.Allowed {
				break
			}
			if tries++; tries == 1 {
				first = d.RetryAfter
			}
			time.Sleep(d.RetryAfter)
		}
		took := time.Since(began)
		cancel()
		all.Wait()
		assert.Greater(t, took, 30*time.Second)
		assert.InDelta(t, took.Seconds(), first.Seconds(), 0.1*took.Seconds())
		assert.LessOrEqual(t, tries, 2)
	})
}
