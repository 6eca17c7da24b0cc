package main

import (
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/redislimit"
)

// protect wraps a handler in middleware. Its limiter is a failover over Redis,
// with one key and a local limit of 3 that regains nothing during the test.
func protect(t *testing.T, s *server, handler http.HandlerFunc) (*httplimit.Middleware, http.Handler) {
	client := redis.NewClient(&redis.Options{Addr: s.addr, DialerRetries: 1})
	t.Cleanup(func() { _ = client.Close() })
	shared, err := redislimit.New(client, ratelimit.FixedWindow(ratelimit.PerDay(100)), &redislimit.Options{Name: "http", Timeout: 10 * time.Second})
	require.NoError(t, err)
	local, err := ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerDay(3)), nil)
	require.NoError(t, err)
	quiet := slog.New(slog.DiscardHandler)
	l, err := failover.New(shared, local, &failover.Options{Timeout: -1, Failures: 2, OpenFor: time.Hour, Logger: quiet})
	require.NoError(t, err)
	m, err := httplimit.New(ratelimit.Map(l, func(r *http.Request) (string, error) { return r.URL.Path, nil }), &httplimit.Options{
		FailOpen: true, Settle: httplimit.RefundServerErrors, DegradedHeader: "X-Degraded", Logger: quiet,
	})
	require.NoError(t, err)
	return m, m.Wrap(handler)
}

// A failover always decides, so FailOpen never applies: if the store is down, requests are still limited.
func TestFailOpenOpensNothingThatFailoverDecides(t *testing.T) {
	redistest.Program(t)
	s, err := startServer(t.Context())
	require.NoError(t, err)
	defer s.close()
	var serve http.HandlerFunc = func(http.ResponseWriter, *http.Request) {}
	m, h := protect(t, s, func(w http.ResponseWriter, r *http.Request) { serve(w, r) })
	var degraded []string
	statuses := make(map[int]int)
	request := func() {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
		statuses[w.Code]++
		degraded = append(degraded, w.Header().Get("X-Degraded"))
	}
	request()
	serve = func(http.ResponseWriter, *http.Request) { require.NoError(t, s.kill()) }
	request()
	serve = func(http.ResponseWriter, *http.Request) {}
	for range 8 {
		request()
	}
	require.Equal(t, map[int]int{http.StatusOK: 2 + 3, http.StatusTooManyRequests: 5}, statuses)
	require.Equal(t, []string{"", "", "true", "true", "true", "true", "true", "true", "true", "true"}, degraded)
	require.Equal(t, httplimit.Stats{Allowed: 5, Denied: 5, Degraded: 8}, m.Stats())
}
