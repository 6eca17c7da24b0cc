package httplimit_test

import (
	"context"
	"fmt"
	"io"
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

// holding is middleware that holds requests for up to a minute, of a limit of one a second whose line has room for so many.
func holding(t *testing.T, room int, opts httplimit.Options) *httplimit.Middleware {
	l := ratelimit.Must(ratelimit.New(ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), &ratelimit.Options[netip.Addr]{MaxWaiting: room}))
	opts.MaxHold = time.Minute
	return middleware(t, ratelimit.Map(l, httplimit.RemoteIP), opts)
}

func TestAHeldRequestThatIsRefusedIsReportedAsRefused(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var mu sync.Mutex
		outcomes := map[httplimit.Outcome]int{}
		m := holding(t, 5, httplimit.Options{OnDecision: func(e httplimit.Event) {
			mu.Lock()
			defer mu.Unlock()
			outcomes[e.Outcome]++
		}})
		h, statuses, left := m.Wrap(ok), map[int]int{}, 0
		var wg sync.WaitGroup
		for i := range 100 {
			ctx, leave := context.WithCancel(t.Context())
			defer leave()
			if i == 5 { // the last one in line leaves
				time.AfterFunc(time.Second/2, leave)
			}
			wg.Go(func() {
				w := httptest.NewRecorder()
				h.ServeHTTP(w, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
				mu.Lock()
				defer mu.Unlock()
				if ctx.Err() != nil {
					left++
					return
				}
				statuses[w.Code]++
				if w.Code == http.StatusServiceUnavailable {
					assert.Len(t, w.Header()["Ratelimit-Policy"], 1, "named once")
					assert.Len(t, w.Header()["Ratelimit"], 1)
				}
			})
			synctest.Wait()
		}
		wg.Wait()
		assert.Equal(t, map[int]int{200: 5, 503: 94}, statuses)
		assert.Equal(t, 1, left)
		assert.Equal(t, httplimit.Stats{Allowed: 5, Denied: 94, Rejected: 1}, m.Stats())
		assert.Equal(t, map[httplimit.Outcome]int{httplimit.OutcomeAllowed: 5, httplimit.OutcomeDenied: 94, httplimit.OutcomeRejected: 1}, outcomes)
	})
}

func TestARequestWhoseDeadlineComesBeforeItsTurnIsReportedAsDenied(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := holding(t, 0, httplimit.Options{})
		h := m.Wrap(ok)
		require.Equal(t, 200, get(h).StatusCode)
		ctx, cancel := context.WithTimeout(t.Context(), time.Second/2)
		defer cancel()
		assert.Equal(t, http.StatusServiceUnavailable, send(h, httptest.NewRequestWithContext(ctx, "GET", "/", nil)).StatusCode)
		assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, m.Stats())
	})
}

// The server's timeouts begin anew after the hold, and do not end during it: over HTTP/1 a ReadTimeout would cancel the context, over
// HTTP/2 a WriteTimeout the stream.
func TestAHoldUsesUpNoTimeoutOfTheServer(t *testing.T) {
	for _, timeouts := range []struct{ read, write time.Duration }{{time.Second, 0}, {0, 3 * time.Second}, {2 * time.Second, 3 * time.Second}} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/HTTP2=%v", timeouts, http2), func(t *testing.T) {
				t.Parallel()
				var orders, answered atomic.Int32
				m, err := httplimit.PerIP(ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: 2500 * time.Millisecond}, 1), &httplimit.Options{MaxHold: 10 * time.Second})
				require.NoError(t, err)
				s := httptest.NewUnstartedServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(700 * time.Millisecond): // with the hold, longer than each of the timeouts
					case <-r.Context().Done():
					}
					orders.Add(1)
					_, _ = io.Copy(w, r.Body)
				})))
				s.Config.ReadTimeout, s.Config.WriteTimeout, s.Config.ErrorLog = timeouts.read, timeouts.write, logOf(quiet)
				s.EnableHTTP2 = http2
				s.StartTLS()
				defer s.Close()
				var wg sync.WaitGroup
				for range 2 {
					wg.Go(func() {
						resp, err := s.Client().Post(s.URL, "text/plain", nil)
						if err == nil && resp.StatusCode == http.StatusOK {
							answered.Add(1)
							_ = resp.Body.Close()
						}
					})
				}
				wg.Wait()
				assert.EqualValues(t, 2, answered.Load())
				assert.EqualValues(t, 2, orders.Load())
			})
		}
	}
}

func TestAShutdownRefusesHeldRequestsAtOnce(t *testing.T) {
	m, err := httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerHour(1), 1), &httplimit.Options{MaxHold: 100 * time.Hour})
	require.NoError(t, err)
	for _, http2 := range []bool{false, true} {
		held := make(chan struct{}, 10)
		h := m.Wrap(ok)
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			held <- struct{}{}
			h.ServeHTTP(w, r)
		}))
		s.EnableHTTP2 = http2
		s.Config.RegisterOnShutdown(m.RefuseHeld)
		s.StartTLS()
		statuses := make(chan int, 10)
		for range 10 {
			go func() {
				resp, err := s.Client().Get(s.URL)
				if err != nil {
					statuses <- 0
					return
				}
				_ = resp.Body.Close()
				statuses <- resp.StatusCode
			}()
			<-held
		}
		require.NoError(t, s.Config.Shutdown(t.Context()))
		got := map[int]int{}
		for range 10 {
			got[<-statuses]++
		}
		want := map[int]int{200: 1, 503: 9}
		if http2 { // the budget is spent, and nothing is held any more
			want = map[int]int{503: 10}
		}
		assert.Equal(t, want, got)
		s.Close()
	}
	new(httplimit.Middleware).RefuseHeld()
}

func TestRequestsThatPassAtOnceAreServedAfterRefuseHeld(t *testing.T) {
	m := holding(t, 0, httplimit.Options{})
	m.RefuseHeld()
	h := m.Wrap(ok)
	assert.Equal(t, 200, get(h).StatusCode)
	refused := get(h)
	assert.Equal(t, 503, refused.StatusCode)
	assert.Equal(t, "1", refused.Header.Get("Retry-After"))
	assert.Equal(t, httplimit.Stats{Allowed: 1, Denied: 1}, m.Stats())
}
