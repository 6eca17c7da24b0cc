package migrate

import (
	"context"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"golang.org/x/time/rate"

	"github.com/weir-go/ratelimit"
)

// TestWaitersWhoGiveUp makes more than 20 calls a second under a limit of 20 a second. Each one
// cancels its context after 2 s. The test counts the successful calls, for a table in docs/recipes.md.
func TestWaitersWhoGiveUp(t *testing.T) {
	for _, offered := range []int{21, 22, 25, 30, 40, 200} {
		ours := served(t, offered, func() func(context.Context) error {
			l := single(t, ratelimit.TokenBucket(ratelimit.PerSecond(20), 1))
			return func(ctx context.Context) error { return l.Wait(ctx, 1) }
		})
		theirs := served(t, offered, func() func(context.Context) error { return rate.NewLimiter(20, 1).Wait })
		t.Logf("%d a second offered: %.1f served, x/time/rate %.1f", offered, ours, theirs)
		assert.GreaterOrEqual(t, ours, 19.0)
	}
}

// served returns how many calls are served per second, measured over a minute.
func served(t *testing.T, offered int, limiter func() func(context.Context) error) (perSecond float64) {
	synctest.Test(t, func(t *testing.T) {
		wait := limiter()
		begin := time.Now().Add(10 * time.Second)
		end := begin.Add(time.Minute)
		var n atomic.Int64
		var wg sync.WaitGroup
		for time.Now().Before(end) {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				defer time.AfterFunc(2*time.Second, cancel).Stop()
				if wait(ctx) == nil && !time.Now().Before(begin) {
					n.Add(1)
				}
			})
			time.Sleep(time.Second / time.Duration(offered))
		}
		wg.Wait()
		perSecond = float64(n.Load()) / 62 // the last calls are served within 2 s after a minute
	})
	return perSecond
}
