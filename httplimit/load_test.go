package httplimit_test

import (
	"context"
	"crypto/tls"
	"io"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/crowd"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// realClock runs on its own, and remembers its first reading and its last.
type realClock struct {
	origin      time.Time
	mu          sync.Mutex
	read        bool
	first, last time.Duration
}

func (c *realClock) Now() time.Duration {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Since(c.origin)
	if !c.read {
		c.read, c.first = true, now
	}
	c.last = now
	return now
}

// For some seconds, clients on many connections send as many requests as they can. In any order of the requests, the
// admitted costs and the remaining budget add up exactly to the burst and the gain of the rate since the first request.
// The first request comes alone and takes the whole burst. So the bucket is not full again, which would lose units,
// before all clients are connected.
func TestAdmittedUnderLoadIsExactlyTheLimit(t *testing.T) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			const units, burst = 7, 10_000
			before := runtime.NumGoroutine()
			clock := &realClock{origin: time.Now()}
			perIP := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(units), burst), &ratelimit.Options[netip.Addr]{Clock: clock}))
			daily := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerDay(1<<30)).Named("daily"), &ratelimit.Options[string]{Clock: clock}))
			all := ratelimit.Must(ratelimit.All(ratelimit.By(perIP, httplimit.RemoteIP), ratelimit.By(daily, everyone)))
			var cost atomic.Int64
			cost.Store(burst)
			m := middleware(t, all, httplimit.Options{Cost: func(*http.Request) int { return int(cost.Load()) }})
			var served atomic.Uint64
			h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served.Add(uint64(cost.Swap(1))) }))

			r := httptest.NewRequest("GET", "/", nil)
			r.RemoteAddr = "127.0.0.1:1"
			h.ServeHTTP(httptest.NewRecorder(), r)
			load := newLoad(t, h, proto, 64)
			for !t.Failed() && load.denied.Load() <= load.ok.Load() { // until there are more denied than admitted requests, on any machine
				load.run(t, loadTime())
			}
			load.close()

			d, err := all.Peek(context.Background(), r, 1)
			require.NoError(t, err)
			since := clock.last - clock.first
			regained := int(units * since / time.Second)
			assert.Equal(t, uint64(burst+regained-d.Remaining), served.Load(), "in %v", since)
			assert.Equal(t, served.Load()-burst, load.ok.Load())
			assert.Equal(t, httplimit.Stats{Allowed: 1 + load.ok.Load(), Denied: load.denied.Load()}, m.Stats())
			assert.Equal(t, 1, perIP.Stats().Keys)
			crowd.Gone(t, before)
		})
	}
}

// Five times as many requests leave no more memory behind.
func TestLoadLeavesNoMemoryBehind(t *testing.T) {
	testsize.Sequential(t)
	limiter := limiterOf(t, nil, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 100))
	m := middleware(t, limiter, httplimit.Options{Jitter: time.Second, Settle: httplimit.RefundServerErrors})
	load := newLoad(t, m.Wrap(ok), "HTTP/1.1", 32)
	defer load.close()
	load.requests(t, 2_000)
	before := testsize.Heap()
	load.requests(t, 8_000)
	assert.Less(t, testsize.Heap(), before+128<<10, "16 bytes for each request would show")
}

func loadTime() time.Duration { return testsize.Of(200*time.Millisecond, 5*time.Second) }

// load is a server on the loopback interface and clients that keep their connections.
type load struct {
	server            *httptest.Server
	clients           []*http.Client
	ok, denied, other atomic.Uint64
}

func newLoad(t *testing.T, h http.Handler, proto string, connections int) *load {
	l := &load{server: httptest.NewUnstartedServer(h)}
	if proto == "HTTP/2.0" {
		l.server.EnableHTTP2 = true
		l.server.StartTLS()
	} else {
		l.server.Start()
	}
	for range connections {
		transport := &http.Transport{ForceAttemptHTTP2: proto == "HTTP/2.0", MaxConnsPerHost: 1}
		if proto == "HTTP/2.0" {
			transport.TLSClientConfig = &tls.Config{RootCAs: l.server.Client().Transport.(*http.Transport).TLSClientConfig.RootCAs}
		}
		l.clients = append(l.clients, &http.Client{Transport: transport})
	}
	require.NoError(t, l.request(l.clients[0]), "the first request sets the clock going")
	return l
}

func (l *load) close() {
	for _, c := range l.clients {
		c.CloseIdleConnections()
	}
	l.server.Close()
}

// run sends requests on all connections until the time is over. No request is cut short.
func (l *load) run(t *testing.T, d time.Duration) {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	defer cancel()
	l.each(t, func() bool { return ctx.Err() == nil })
}

// requests sends n requests, on all connections together.
func (l *load) requests(t *testing.T, n int64) {
	var left atomic.Int64
	left.Store(n)
	l.each(t, func() bool { return left.Add(-1) >= 0 })
}

func (l *load) each(t *testing.T, more func() bool) {
	var wg sync.WaitGroup
	for _, c := range l.clients {
		wg.Go(func() {
			for more() {
				if !assert.NoError(t, l.request(c)) {
					return
				}
			}
		})
	}
	wg.Wait()
	assert.Zero(t, l.other.Load())
}

func (l *load) request(c *http.Client) error {
	resp, err := c.Get(l.server.URL)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	switch resp.StatusCode {
	case http.StatusOK:
		l.ok.Add(1)
	case http.StatusTooManyRequests:
		l.denied.Add(1)
	default:
		l.other.Add(1)
	}
	_, err = io.Copy(io.Discard, resp.Body)
	return err
}
