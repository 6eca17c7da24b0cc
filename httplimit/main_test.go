package httplimit_test

import (
	"context"
	"io"
	"log"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// fakeClock is set by hand. It is the limiter's clock and, counted from an epoch, the wall clock.
type fakeClock struct{ now atomic.Int64 }

var epoch = time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)

func (c *fakeClock) Now() time.Duration      { return time.Duration(c.now.Load()) }
func (c *fakeClock) wall() time.Time         { return epoch.Add(c.Now()) }
func (c *fakeClock) advance(d time.Duration) { c.now.Add(int64(d)) }

// quiet is the logger of middleware with expected errors.
var quiet = slog.New(slog.DiscardHandler)

// everyone is a key function that puts all requests under one key.
func everyone(*http.Request) (string, error) { return "everyone", nil }

// limiterOf returns a stack of one layer for each limit, all keyed alike.
func limiterOf(t testing.TB, clock ratelimit.Clock, limits ...ratelimit.Limit) *ratelimit.Layered[*http.Request] {
	t.Helper()
	var layers []ratelimit.Layer[*http.Request]
	for _, limit := range limits {
		l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
		layers = append(layers, ratelimit.By(l, everyone))
	}
	return ratelimit.Must(ratelimit.All(layers...))
}

func middleware(t testing.TB, l ratelimit.Limiter[*http.Request], opts httplimit.Options) *httplimit.Middleware {
	t.Helper()
	if opts.Logger == nil {
		opts.Logger = quiet
	}
	return ratelimit.Must(httplimit.New(l, &opts))
}

// ok is a handler that answers 200.
var ok = http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { _, _ = io.WriteString(w, "ok") })

// get sends a request straight to a handler.
func get(h http.Handler) *http.Response { return send(h, with()) }

func send(h http.Handler, r *http.Request) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, r)
	return w.Result()
}

// unreachable returns a handler that must not be reached.
func unreachable(t testing.TB) http.Handler {
	return http.HandlerFunc(func(http.ResponseWriter, *http.Request) { assert.Fail(t, "the handler was reached") })
}

func body(t testing.TB, resp *http.Response) string {
	t.Helper()
	b, err := io.ReadAll(resp.Body)
	require.NoError(t, err)
	require.NoError(t, resp.Body.Close())
	return string(b)
}

// bubble runs a subtest in virtual time.
func bubble(t *testing.T, name string, f func(t *testing.T)) {
	t.Helper()
	t.Run(name, func(t *testing.T) { synctest.Test(t, f) })
}

// started returns a server on the loopback interface, until the test ends.
func started(t testing.TB, h http.Handler) *httptest.Server {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	return s
}

// overBoth runs a test against the handler on the loopback interface,
// over HTTP/1.1 and over HTTP/2, with the standard library's client.
func overBoth(t *testing.T, h http.Handler, test func(t *testing.T, client *http.Client, url string)) {
	for _, proto := range []string{"HTTP/1.1", "HTTP/2.0"} {
		t.Run(proto, func(t *testing.T) {
			s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				require.Equal(t, proto, r.Proto)
				h.ServeHTTP(w, r)
			}))
			s.Config.ErrorLog = slog.NewLogLogger(slog.DiscardHandler, slog.LevelError)
			s.EnableHTTP2 = proto == "HTTP/2.0"
			s.StartTLS()
			defer s.Close()
			test(t, s.Client(), s.URL)
		})
	}
}

// stub is a limiter that returns the prepared decision.
type stub struct {
	decision ratelimit.Decision
	err      error
	limits   []ratelimit.Limit
	costs    []int
}

func (s *stub) Allow(r *http.Request, cost int) bool {
	d, _ := s.Take(r.Context(), r, cost)
	return d.Allowed
}

func (s *stub) Take(_ context.Context, _ *http.Request, cost int) (ratelimit.Decision, error) {
	s.costs = append(s.costs, cost)
	return s.decision, s.err
}

// listing is a stub that knows its limits.
type listing struct{ stub }

func (s *listing) Describe() ratelimit.Description {
	return ratelimit.Description{Limits: s.limits, BooksAhead: true}
}

func prefixes(t testing.TB, list ...string) (out []netip.Prefix) {
	t.Helper()
	for _, s := range list {
		out = append(out, ratelimit.Must(netip.ParsePrefix(s)))
	}
	return out
}

// withContextValue returns the request with a value in its context.
func withContextValue(r *http.Request, key, value any) *http.Request {
	return r.WithContext(context.WithValue(r.Context(), key, value))
}

// logOf returns a logger for [http.Server.ErrorLog].
func logOf(l *slog.Logger) *log.Logger { return slog.NewLogLogger(l.Handler(), slog.LevelError) }
