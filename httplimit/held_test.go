package httplimit_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func TestAHeldPostWhoseClientLeavesGivesItsPlaceBackIfItsBodyWasRead(t *testing.T) {
	l, err := ratelimit.New[netip.Addr](ratelimit.LeakyBucket(ratelimit.PerHour(1), 10), nil)
	require.NoError(t, err)
	limiter, err := ratelimit.All(ratelimit.By(l, httplimit.RemoteIP))
	require.NoError(t, err)
	m := middleware(t, limiter, httplimit.Options{})
	s := httptest.NewServer(bodyFirst(m.Wrap(http.NotFoundHandler()), 100))
	defer s.Close()
	resp, err := s.Client().Post(s.URL, "text/plain", bytes.NewReader([]byte("hello"))) // the next one waits for an hour
	require.NoError(t, err)
	body(t, resp)
	room := func() int {
		d, err := l.Peek(context.Background(), netip.MustParseAddr("127.0.0.1"), 0)
		require.NoError(t, err)
		return d.Remaining
	}
	before := room()
	conn, err := net.Dial("tcp", s.Listener.Addr().String())
	require.NoError(t, err)
	_, err = io.WriteString(conn, "POST / HTTP/1.1\r\nHost: x\r\nContent-Length: 5\r\n\r\nhello")
	require.NoError(t, err)
	require.Eventually(t, func() bool { return room() == before-1 }, 10*time.Second, time.Millisecond, "it is held")
	require.NoError(t, conn.Close())
	assert.Eventually(t, func() bool { return room() == before }, 10*time.Second, time.Millisecond, "it has given its place back")
}

// heldRate returns the number of requests that are served in a second, of requests at a multiple of 20 a second whose clients
// leave after 2 s.
func heldRate(t *testing.T, offered float64, made func() *httplimit.Middleware) (perSecond float64) {
	synctest.Test(t, func(t *testing.T) {
		begin := time.Now().Add(5 * time.Second)
		end := begin.Add(20 * time.Second)
		var served atomic.Int64
		h := made().Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
			if now := time.Now(); !now.Before(begin) && now.Before(end) {
				served.Add(1)
			}
		}))
		var wg sync.WaitGroup
		for time.Now().Before(end) {
			wg.Go(func() {
				ctx, cancel := context.WithCancel(context.Background())
				defer cancel()
				defer time.AfterFunc(2*time.Second, cancel).Stop()
				r := httptest.NewRequestWithContext(ctx, http.MethodGet, "/", nil)
				h.ServeHTTP(httptest.NewRecorder(), r)
			})
			time.Sleep(time.Duration(float64(time.Second) / 20 / offered))
		}
		wg.Wait()
		perSecond = float64(served.Load()) / 20
	})
	return perSecond
}

func TestHeldRequestsMoveUpWhenOthersLeave(t *testing.T) {
	leaky := ratelimit.LeakyBucket(ratelimit.PerSecond(20), 100)
	must := func(m *httplimit.Middleware, err error) *httplimit.Middleware {
		require.NoError(t, err)
		return m
	}
	for name, made := range map[string]func() *httplimit.Middleware{
		"PerIP":  func() *httplimit.Middleware { return must(httplimit.PerIP(leaky, nil)) },
		"PerKey": func() *httplimit.Middleware { return must(httplimit.PerKey(leaky, httplimit.RemoteIP, nil)) },
		"All": func() *httplimit.Middleware {
			whole := ratelimit.Must(ratelimit.New[struct{}](ratelimit.LeakyBucket(ratelimit.PerSecond(20), 200).Named("whole"), nil))
			each := ratelimit.Must(ratelimit.New[netip.Addr](leaky, nil))
			window := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1000).Named("calls"), nil))
			return must(httplimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(each, httplimit.RemoteIP),
				ratelimit.Global[*http.Request](whole), ratelimit.By(window, httplimit.RemoteIP))), nil))
		},
		"PerIP, MaxHold of a token bucket": func() *httplimit.Middleware {
			return must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(20), 5), &httplimit.Options{MaxHold: 10 * time.Second}))
		},
		"PerIP, MaxHold and Settle": func() *httplimit.Middleware {
			return must(httplimit.PerIP(leaky, &httplimit.Options{MaxHold: 10 * time.Second, Settle: func(_ *http.Request, _, cost int) int { return cost }}))
		},
	} {
		for _, offered := range []float64{1.05, 1.5, 2, 10} {
			t.Run(fmt.Sprintf("%s/%v×", name, offered), func(t *testing.T) {
				got := heldRate(t, offered, made)
				t.Logf("%.2f of 20", got)
				require.GreaterOrEqual(t, got, .95*20)
			})
		}
	}
}

func TestMaxHoldHoldsARequestThatCanPassWithinItAndDeniesOthersAtOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerSecond(2), 1), &httplimit.Options{MaxHold: 500 * time.Millisecond})
		require.NoError(t, err)
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		start := time.Now()
		var wg sync.WaitGroup
		for i, want := range []struct {
			status int
			after  time.Duration
		}{{http.StatusNoContent, 0}, {http.StatusNoContent, 500 * time.Millisecond}, {http.StatusTooManyRequests, 0}} {
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				assert.Equal(t, want.status, w.Code, "request %d", i)
				assert.Equal(t, want.after, time.Since(start), "request %d", i)
			})
			synctest.Wait()
		}
		wg.Wait()
	})
}

func TestMaxHoldNeedsALimiterThatCanHold(t *testing.T) {
	keyed := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), nil))
	stack := ratelimit.Must(ratelimit.All(ratelimit.By(keyed, httplimit.RemoteIP)))
	for want, opts := range map[string]*httplimit.Options{
		"Options.MaxHold is 1s, and *ratelimit.Layered":     {MaxHold: time.Second},
		"Options.MaxHold is -1ns, want 0 for none, or more": {MaxHold: -1},
	} {
		_, err := httplimit.New(stack, opts)
		require.ErrorContains(t, err, want)
	}
}

func TestAHeldRequestThatFindsNoRoomAmongTheWaitingGets503(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[netip.Addr]{MaxWaiting: 1}))
		m, err := httplimit.New(ratelimit.Map(l, httplimit.RemoteIP), &httplimit.Options{MaxHold: time.Minute})
		require.NoError(t, err)
		h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) }))
		var codes [3]int
		var wg sync.WaitGroup
		for i := range codes {
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
				codes[i] = w.Code
			})
			synctest.Wait()
		}
		require.Equal(t, 1, l.Stats().Waiting)
		require.Equal(t, http.StatusServiceUnavailable, codes[2], "at once")
		wg.Wait()
		require.Equal(t, [3]int{204, 204, 503}, codes)
		require.Zero(t, l.Stats().Waiting)
	})
}
