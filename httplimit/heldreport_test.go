package httplimit_test

import (
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

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
