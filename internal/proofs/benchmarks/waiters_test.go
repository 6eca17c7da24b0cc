package benchmarks

import (
	"context"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"golang.org/x/time/rate"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// waiters is how many of a client's requests wait at the same time.
const waiters = 16_000

// instantly is a server that answers at once.
type instantly struct{}

func (instantly) RoundTrip(r *http.Request) (*http.Response, error) {
	return &http.Response{StatusCode: http.StatusOK, Header: http.Header{}, Body: http.NoBody, Request: r}, nil
}

// waiting is an http.RoundTripper with x/time/rate, as in many programs.
type waiting struct {
	base    http.RoundTripper
	limiter *rate.Limiter
}

func (w waiting) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := w.limiter.Wait(r.Context()); err != nil {
		return nil, err
	}
	return w.base.RoundTrip(r)
}

// clientPeers are clients that may send nothing for a second, and then a million requests a second.
var clientPeers = []struct {
	name string
	new  func() (http.RoundTripper, error)
}{
	{"httplimit", func() (http.RoundTripper, error) {
		l := must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000), 1_000_000), nil))
		for range 2 {
			must(l.Reserve(context.Background(), "http://api.example", 1_000_000, time.Minute))
		}
		all := ratelimit.Map(l, httplimit.TargetHost)
		return httplimit.NewTransport(instantly{}, all, nil)
	}},
	{"xtime", func() (http.RoundTripper, error) {
		l := rate.NewLimiter(1_000_000, 1_000_000)
		for range 2 {
			l.ReserveN(time.Now(), 1_000_000)
		}
		return waiting{instantly{}, l}, nil
	}},
}

// BenchmarkWaiters measures how late the last of many requests is sent. All wait in one client.
func BenchmarkWaiters(b *testing.B) {
	for _, p := range clientPeers {
		b.Run("peer="+p.name, func(b *testing.B) {
			var late time.Duration
			for b.Loop() {
				late += lateness(b, p.new)
			}
			b.ReportMetric(float64(late.Microseconds())/1000/float64(b.N), "ms-late/op")
		})
	}
}

// lateness sends many requests at once, and returns how much too late the last one is sent.
func lateness(t testing.TB, client func() (http.RoundTripper, error)) time.Duration {
	begin := time.Now()
	rt, err := client()
	require.NoError(t, err)
	var all sync.WaitGroup
	for range waiters {
		all.Go(func() {
			r, err := http.NewRequest(http.MethodGet, "http://api.example/", nil)
			if assert.NoError(t, err) {
				_, err = rt.RoundTrip(r)
				assert.NoError(t, err)
			}
		})
	}
	all.Wait()
	return time.Since(begin) - time.Second - waiters*time.Microsecond
}
