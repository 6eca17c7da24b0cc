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
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

// Under a Concurrent limit, a request holds its unit until its handler returns or
// panics, however long it runs. If the unit is lost, the handler's context ends.
func TestARequestHoldsItsUnitUntilItsHandlerEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
		m := middleware(t, ratelimit.Must(ratelimit.All(ratelimit.By(l, everyone))), httplimit.Options{})
		end, ended := make(chan any), make(chan any, 1)
		h := m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			select {
			case fault := <-end:
				if fault != nil {
					panic(fault)
				}
			case <-r.Context().Done():
				panic(context.Cause(r.Context()))
			}
		}))
		for _, fault := range []error{nil, http.ErrAbortHandler, ratelimit.ErrLost} {
			go func() {
				defer func() { ended <- recover() }()
				get(h)
			}()
			time.Sleep(time.Hour) // sixty times the hold
			require.Equal(t, http.StatusTooManyRequests, get(h).StatusCode)
			switch fault {
			case ratelimit.ErrLost:
				require.NoError(t, l.Reset(t.Context(), "everyone"))
			case nil:
				end <- nil
			default:
				end <- fault
			}
			got, _ := (<-ended).(error)
			require.ErrorIs(t, got, fault)
		}
	})
}

// A WebSocket holds its unit until its connection is closed, although its handler has returned before.
func TestAHijackedConnectionHoldsItsUnitUntilItIsClosed(t *testing.T) {
	for name, o := range map[string]*httplimit.Options{
		"with fields": nil, "without fields": {Dialect: httplimit.DialectNone}, "settled": {Settle: httplimit.ChargeOnly(http.StatusSwitchingProtocols)},
		"in a shadow": {Shadow: true},
	} {
		t.Run(name, func(t *testing.T) {
			calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(2, time.Minute), nil))
			all := func(*http.Request) (string, error) { return "all", nil }
			m := ratelimit.Must(httplimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(calls, all))), o))
			s := started(t, m.Wrap(echoes(t)))
			left := func() int {
				d, err := ratelimit.Peek(t.Context(), calls, "all", 0)
				require.NoError(t, err)
				return d.Remaining
			}
			first, status := upgrade(t, s)
			require.Equal(t, http.StatusSwitchingProtocols, status)
			second, status := upgrade(t, s)
			require.Equal(t, http.StatusSwitchingProtocols, status)
			if o == nil || !o.Shadow {
				_, status = upgrade(t, s)
				assert.Equal(t, http.StatusTooManyRequests, status)
			}
			assert.Zero(t, left())
			require.NoError(t, first.Close())
			assert.Eventually(t, func() bool { return left() == 1 }, time.Minute, time.Millisecond)
			third, status := upgrade(t, s)
			require.Equal(t, http.StatusSwitchingProtocols, status)
			require.NoError(t, second.Close())
			require.NoError(t, third.Close())
			assert.Eventually(t, func() bool { return left() == 2 }, time.Minute, time.Millisecond)
		})
	}
}

func TestAHeldPostWhoseClientLeavesGivesItsPlaceBackIfItsBodyWasRead(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[netip.Addr](ratelimit.LeakyBucket(ratelimit.PerHour(1), 10), nil))
	m := middleware(t, ratelimit.Must(ratelimit.All(ratelimit.By(l, httplimit.RemoteIP))), httplimit.Options{})
	s := started(t, bodyFirst(m.Wrap(http.NotFoundHandler()), 100))
	resp, err := s.Client().Post(s.URL, "text/plain", bytes.NewReader([]byte("hello"))) // the next request waits for an hour
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

// A hold uses up none of the server's timeouts: they start again after it. Otherwise a
// ReadTimeout would cancel the context over HTTP/1, and a WriteTimeout the stream over HTTP/2.
func TestAHoldUsesUpNoTimeoutOfTheServer(t *testing.T) {
	testsize.Alone(t) // the handshake and the handler share the server's timeouts with the hold
	for _, timeouts := range []struct{ read, write time.Duration }{{time.Second, 0}, {0, 3 * time.Second}, {2 * time.Second, 3 * time.Second}} {
		for _, http2 := range []bool{false, true} {
			t.Run(fmt.Sprintf("%v/HTTP2=%v", timeouts, http2), func(t *testing.T) {
				t.Parallel()
				var orders, answered atomic.Int32
				m := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.Rate{Units: 1, Per: 2500 * time.Millisecond}, 1), &httplimit.Options{MaxHold: 10 * time.Second}))
				s := httptest.NewUnstartedServer(m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					select {
					case <-time.After(700 * time.Millisecond): // with the hold, longer than each timeout
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
	m := ratelimit.Must(httplimit.PerIP(ratelimit.TokenBucket(ratelimit.PerHour(1), 1), &httplimit.Options{MaxHold: 100 * time.Hour}))
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
		if http2 { // the first run has spent the budget, and no request is held any longer
			want = map[int]int{503: 10}
		}
		assert.Equal(t, want, got)
		s.Close()
	}
	new(httplimit.Middleware).RefuseHeld()
}
