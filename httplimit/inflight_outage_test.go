package httplimit_test

import (
	"fmt"
	"math/rand/v2"
	"net/http"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// replicas is a backend of 8 servers that each take 20 ms. A share of them is dead: requests to these get a 503 after 1
// ms. The 503 may have a Retry-After, as those of proxies and overloaded servers do.
type replicas struct {
	servers chan struct{}
	dead    atomic.Int32 // the share of requests that are sent to it, in per cent

	retryAfter bool
}

func (b *replicas) RoundTrip(r *http.Request) (*http.Response, error) {
	answer := func(status int) (*http.Response, error) {
		h := http.Header{}
		if b.retryAfter {
			h.Set("Retry-After", "1")
		}
		return &http.Response{StatusCode: status, Header: h, Body: http.NoBody, Request: r}, nil
	}
	if rand.Int32N(100) < b.dead.Load() {
		time.Sleep(time.Millisecond)
		return answer(http.StatusServiceUnavailable)
	}
	b.servers <- struct{}{}
	defer func() { <-b.servers }()
	time.Sleep(time.Duration(rand.ExpFloat64() * float64(20*time.Millisecond)))
	return answer(http.StatusOK)
}

// A Retry-After is no evidence of overload: a lower limit does not make a dead replica answer. Each run counts.
func TestADeadReplicaThatAnswersWithRetryAfterDoesNotLowerTheLimit(t *testing.T) {
	testsize.Sequential(t)
	for name, adaptive := range map[string]func() inflight.Algorithm{
		"Learn": inflight.Learn(nil), "Learn with Timeout": inflight.Learn(&inflight.LearnOptions{Timeout: 200 * time.Millisecond}),
	} {
		for _, dead := range []int{30, 50} {
			t.Run(fmt.Sprintf("%s, %d %%", name, dead), func(t *testing.T) {
				for run := range testsize.Of(6, 60) {
					synctest.Test(t, func(t *testing.T) {
						rate := rateBesideADeadReplica(t, adaptive, dead, run%2 == 0)
						assert.Greater(t, rate, 0.85*float64(8-8*dead/100)*50, "answers a second in run %d", run)
					})
				}
			})
		}
	}
}

// rateBesideADeadReplica returns the number of good answers a second while a share of the replicas is dead.
func rateBesideADeadReplica(t *testing.T, adaptive func() inflight.Algorithm, dead int, retryAfter bool) float64 {
	backend := &replicas{servers: make(chan struct{}, 8), retryAfter: retryAfter}
	limiter, err := inflight.New(400, &inflight.Options[string]{Adaptive: adaptive})
	require.NoError(t, err)
	transport, err := httplimit.NewTransport(backend, nil, &httplimit.TransportOptions{Inflight: limiter})
	require.NoError(t, err)
	var good atomic.Int64
	send := func(d time.Duration) { // 800 requests a second, twice the capacity of the backend
		for begin := time.Now(); time.Since(begin) < d; time.Sleep(time.Duration(rand.ExpFloat64() * float64(time.Second/800))) {
			go func() {
				r, _ := http.NewRequestWithContext(t.Context(), http.MethodGet, "http://backend/", nil)
				if resp, err := transport.RoundTrip(r); err == nil && resp.StatusCode == http.StatusOK {
					good.Add(1)
				}
			}()
		}
	}
	send(15 * time.Second)
	backend.dead.Store(int32(dead))
	for range 8 * dead / 100 {
		backend.servers <- struct{}{}
	}
	send(5 * time.Second) // it finds out that a lower limit does not help
	good.Store(0)
	send(10 * time.Second)
	answered := float64(good.Load()) / 10
	time.Sleep(time.Minute) // all requests end
	return answered
}
