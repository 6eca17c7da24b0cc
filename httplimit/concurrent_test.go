package httplimit_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// A request holds the unit of a limit of calls at the same time until its handler returns or panics, however long that takes.
func TestARequestHoldsItsUnitUntilItsHandlerEnds(t *testing.T) {
	two := ratelimit.Concurrent(2, time.Minute)
	limiters := map[string]func() ratelimit.Limiter[*http.Request]{
		"PerIP's": nil,
		"a stack with a rate": func() ratelimit.Limiter[*http.Request] {
			rate := ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerHour(1), 1000), nil))
			streams := ratelimit.Must(ratelimit.New[string](two.Named("streams"), nil))
			all := func(*http.Request) (string, error) { return "all", nil }
			return ratelimit.Must(ratelimit.All(ratelimit.By(rate, all), ratelimit.By(streams, all)))
		},
		"a key's own, which Describe does not know": func() ratelimit.Limiter[*http.Request] {
			l := ratelimit.Must(ratelimit.New(two, &ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit { return two }}))
			return ratelimit.Must(ratelimit.All(ratelimit.By(l, func(*http.Request) (string, error) { return "all", nil })))
		},
	}
	for name, limiter := range limiters {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var m *httplimit.Middleware
				if limiter == nil {
					m = ratelimit.Must(httplimit.PerIP(two, nil))
				} else {
					m = ratelimit.Must(httplimit.New(limiter(), nil))
				}
				end := make(chan any)
				h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {
					if fault := <-end; fault != nil {
						panic(fault)
					}
				}))
				codes := make(chan int, 3)
				call := func() {
					defer func() {
						if recover() != nil {
							codes <- 0
						}
					}()
					w := httptest.NewRecorder()
					h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
					codes <- w.Code
				}
				for range 2 {
					go call()
				}
				time.Sleep(time.Hour) // sixty times the hold
				call()
				require.Equal(t, http.StatusTooManyRequests, <-codes)
				end <- nil
				end <- http.ErrAbortHandler
				require.Equal(t, http.StatusOK, <-codes+<-codes)
				for range 2 {
					go call()
				}
				synctest.Wait()
				end <- nil
				end <- nil
				assert.Equal(t, 2*http.StatusOK, <-codes+<-codes)
				time.Sleep(time.Hour) // no timer is left
			})
		})
	}
}

// A handler whose units are no longer held finds that out by its context.
func TestTheContextEndsWhenUnitsHaveLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
		all := func(*http.Request) (string, error) { return "all", nil }
		logs := new(strings.Builder)
		m := ratelimit.Must(httplimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(calls, all))), &httplimit.Options{Logger: slog.New(slog.NewTextHandler(logs, nil))}))
		began, ended := time.Now(), make(chan time.Time, 1)
		go m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			assert.ErrorIs(t, context.Cause(r.Context()), ratelimit.ErrLost)
			ended <- time.Now()
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
		time.Sleep(time.Hour + time.Second)
		require.NoError(t, calls.Reset(t.Context(), "all"))
		assert.Equal(t, time.Hour+20*time.Second, (<-ended).Sub(began), "when the hold would be extended")
		synctest.Wait()
		assert.Equal(t, 1, strings.Count(logs.String(), "units lapsed while the request was served"))
		d, err := ratelimit.Peek(t.Context(), calls, "all", 1)
		require.NoError(t, err)
		assert.Equal(t, 1, d.Remaining)
	})
}

// A shadow changes nothing for a request, also if its units have lapsed.
func TestAShadowEndsNoRequestWhoseUnitsHaveLapsed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(1, time.Minute), nil))
		all := func(*http.Request) (string, error) { return "all", nil }
		m := ratelimit.Must(httplimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(calls, all))), &httplimit.Options{Shadow: true, Logger: slog.New(slog.DiscardHandler)}))
		m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
			require.NoError(t, calls.Reset(t.Context(), "all"))
			time.Sleep(time.Hour)
			assert.NoError(t, r.Context().Err())
		})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequest("GET", "/", nil))
	})
}

// A WebSocket holds its unit until the connection is closed, and the handler of a proxy has returned by then.
func TestAHijackedConnectionHoldsItsUnitUntilItIsClosed(t *testing.T) {
	for name, o := range map[string]*httplimit.Options{
		"with fields": nil, "without fields": {Dialect: httplimit.DialectNone}, "settled": {Settle: httplimit.ChargeOnly(http.StatusSwitchingProtocols)},
		"in a shadow": {Shadow: true},
	} {
		t.Run(name, func(t *testing.T) {
			calls := ratelimit.Must(ratelimit.New[string](ratelimit.Concurrent(2, time.Minute), nil))
			all := func(*http.Request) (string, error) { return "all", nil }
			m := ratelimit.Must(httplimit.New(ratelimit.Must(ratelimit.All(ratelimit.By(calls, all))), o))
			s := httptest.NewServer(m.Wrap(echoes(t)))
			defer s.Close()
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
