package httplimit_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// guarded is a limit of three failed logins an hour around a handler, and the channel on which each request's end is reported.
func guarded(t *testing.T, h http.Handler, charged ...int) (http.Handler, chan struct{}) {
	limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(3)))
	m := middleware(t, limiter, httplimit.Options{Settle: httplimit.ChargeOnly(charged...)}).Wrap(h)
	ended := make(chan struct{}, 100)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		defer func() { ended <- struct{}{} }()
		m.ServeHTTP(w, r)
	}), ended
}

// A proxy panics with ErrAbortHandler when its client leaves during the response. The status that the client has read stays the status.
func TestAGuesserThatReadsItsStatusAndHangsUpIsCharged(t *testing.T) {
	backend := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.WriteHeader(http.StatusUnauthorized)
		w.(http.Flusher).Flush()
		_, _ = io.Copy(w, zeros{})
	}))
	defer backend.Close()
	to, err := url.Parse(backend.URL)
	require.NoError(t, err)
	proxy := httputil.NewSingleHostReverseProxy(to)
	proxy.FlushInterval, proxy.ErrorLog = -1, logOf(quiet)
	for _, other := range []string{"", "/panics"} {
		h, ended := guarded(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.URL.Path == "/panics" {
				w.WriteHeader(http.StatusUnauthorized)
				panic(http.ErrAbortHandler)
			}
			proxy.ServeHTTP(w, r)
		}), 401)
		served := 0
		overBoth(t, h, func(t *testing.T, client *http.Client, url string) {
			for range 15 {
				ctx, hangUp := context.WithCancel(t.Context())
				r, err := http.NewRequestWithContext(ctx, "GET", url+other, nil)
				require.NoError(t, err)
				resp, err := client.Do(r)
				if err == nil && resp.StatusCode == http.StatusUnauthorized {
					served++
				}
				hangUp()
				if err == nil {
					_ = resp.Body.Close()
				}
				<-ended
			}
		})
		assert.LessOrEqual(t, served, 3, "of 30 guesses")
	}
}

func TestAClientThatLeavesBeforeTheAnswerIsChargedWhateverIsCounted(t *testing.T) {
	for name, h := range map[string]http.HandlerFunc{
		"a server error":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusBadGateway) },
		"a client error":   func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNotFound) },
		"a panic":          func(http.ResponseWriter, *http.Request) { panic(http.ErrAbortHandler) },
		"nothing":          func(http.ResponseWriter, *http.Request) {},
		"a guess's status": func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) },
	} {
		for _, charged := range []int{200, 401} {
			t.Run(name, func(t *testing.T) {
				began := make(chan struct{}, 1)
				guard, ended := guarded(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
					began <- struct{}{}
					<-r.Context().Done()
					h(w, r)
				}), charged)
				overBoth(t, guard, func(t *testing.T, client *http.Client, url string) {
					for i := range 4 {
						ctx, hangUp := context.WithCancel(t.Context())
						r, err := http.NewRequestWithContext(ctx, "GET", url, nil)
						require.NoError(t, err)
						answered := make(chan int, 1)
						go func() {
							resp, err := client.Do(r)
							if err != nil {
								answered <- 0
								return
							}
							_ = resp.Body.Close()
							answered <- resp.StatusCode
						}()
						select {
						case <-began:
							assert.Less(t, i, 3, "the fourth is served")
							hangUp()
							<-answered
						case status := <-answered:
							assert.Equal(t, http.StatusTooManyRequests, status)
							assert.True(t, i == 3 || len(began) == 0)
						case <-time.After(time.Minute):
							t.Error("neither served nor answered")
						}
						hangUp()
						<-ended
					}
				})
			})
		}
	}
}

// What was answered is known, although the client leaves during the rest of the response or the server has noticed it late.
func TestAKnownAnswerIsSettledAsSuchAlthoughTheClientHasGone(t *testing.T) {
	for name, row := range map[string]struct {
		before, after int // the statuses that are written before and after the client leaves
		charged       int
		want          int
	}{
		"a success before":      {200, 0, 401, 0},
		"a success in any case": {0, 200, 401, 0},
		"counted before":        {401, 0, 401, 1},
		"counted in any case":   {0, 401, 401, 1},
		"a server error before": {503, 0, 401, 0},
		"not found before":      {404, 0, 200, 0},
	} {
		t.Run(name, func(t *testing.T) {
			limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(3)))
			m := middleware(t, limiter, httplimit.Options{Settle: httplimit.ChargeOnly(row.charged)})
			ctx, hangUp := context.WithCancel(t.Context())
			m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				if row.before > 0 {
					w.WriteHeader(row.before)
				}
				hangUp()
				if row.after > 0 {
					w.WriteHeader(row.after)
				}
			})).ServeHTTP(httptest.NewRecorder(), httptest.NewRequestWithContext(ctx, "GET", "/", nil))
			assert.Equal(t, 3-row.want, left(t, limiter))
		})
	}
}
