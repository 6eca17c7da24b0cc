package httplimit_test

import (
	"net/http"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Five times as many requests leave no more memory behind.
func TestLoadLeavesNoMemoryBehind(t *testing.T) {
	testsize.Sequential(t)
	const connections = 32
	limiter := limiterOf(t, nil, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 100))
	m := middleware(t, limiter, httplimit.Options{Jitter: time.Second, Settle: httplimit.RefundServerErrors})
	s := started(t, m.Wrap(ok))
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: connections, MaxIdleConnsPerHost: connections}}
	defer client.CloseIdleConnections()
	requests := func(n int64) {
		var left atomic.Int64
		left.Store(n)
		var wg sync.WaitGroup
		for range connections {
			wg.Go(func() {
				for left.Add(-1) >= 0 {
					assert.Contains(t, []int{http.StatusOK, http.StatusTooManyRequests}, fetch(t, client, s.URL))
				}
			})
		}
		wg.Wait()
	}
	requests(2_000)
	before := testsize.Heap()
	requests(8_000)
	assert.Less(t, testsize.Heap(), before+128<<10, "16 bytes for each request would show")
}
