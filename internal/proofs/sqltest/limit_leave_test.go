package sqltest

import (
	"context"
	"fmt"
	"sync"
	"testing"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/sqllimit"
)

// A crowd calls at twice the rate, and half the callers leave. The full rate is served, both by one process and by four.
func TestTheRateIsServedThoughCallersLeave(t *testing.T) {
	if testing.Short() {
		t.Skip("it takes seconds of real time")
	}
	testsize.Extra(t)
	testsize.Alone(t)
	const rate = 100
	server := startPostgres(t)
	budgetTable(t, server.open(t))
	for _, burst := range testsize.Of([]int{5}, []int{1, 5, 100}) {
		var cases sync.WaitGroup
		for _, n := range []int{1, 4} {
			o := sqllimit.Options{Name: fmt.Sprintf("%d-processes_burst-%d", n, burst)}
			limit := ratelimit.TokenBucket(ratelimit.PerSecond(rate), burst)
			probe := limiterOn(t, server.open(t), limit, o)
			var all []func(context.Context) error
			for range n {
				l := limiterOn(t, server.open(t), limit, o)
				l.Allow("connect", 1)
				all = append(all, func(ctx context.Context) error { return l.Wait(ctx, "k", 1) })
			}
			cases.Go(func() {
				r := crowd.Twice(rate).Play(all...)
				d, err := probe.Peek(context.Background(), "k", 1)
				t.Logf("%s: %v, then %v", o.Name, r, d.RetryAfter)
				if assert.NoError(t, err, o.Name) {
					r.Check(t, o.Name, limit, d.RetryAfter, n)
				}
			})
		}
		cases.Wait()
	}
}
