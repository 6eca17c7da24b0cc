package httplimit_test

import (
	"io"
	"net/http"
	"net/http/httptest"
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
	limiter := limiterOf(t, nil, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 100))
	m := middleware(t, limiter, httplimit.Options{Jitter: time.Second, Settle: httplimit.RefundServerErrors})
	load := newLoad(m.Wrap(ok), 32)
	defer load.close()
	load.requests(t, 2_000)
	before := testsize.Heap()
	load.requests(t, 8_000)
	assert.Less(t, testsize.Heap(), before+128<<10, "16 bytes for each request would show")
}

// load is a server on the loopback interface and clients that keep their connections.
type load struct {
	server            *httptest.Server
	clients           []*http.Client
	ok, denied, other atomic.Uint64
}

func newLoad(h http.Handler, connections int) *load {
	l := &load{server: httptest.NewServer(h)}
	for range connections {
		l.clients = append(l.clients, &http.Client{Transport: &http.Transport{MaxConnsPerHost: 1}})
	}
	return l
}

func (l *load) close() {
	for _, c := range l.clients {
		c.CloseIdleConnections()
	}
	l.server.Close()
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
