package redislimit

import (
	"bytes"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// get sends a request straight to the handler, from the address 192.0.2.1.
func get(h http.Handler) *http.Response {
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/", nil))
	return w.Result()
}

// guard wraps a handler in middleware over a limiter whose keys are paths.
func guard(t *testing.T, l ratelimit.Reserver[string], o httplimit.Options, handler http.HandlerFunc) (*httplimit.Middleware, http.Handler) {
	t.Helper()
	path := func(r *http.Request) (string, error) { return r.URL.Path, nil }
	m, err := httplimit.New(ratelimit.Map(l, path), &o)
	require.NoError(t, err)
	return m, m.Wrap(handler)
}

func answerOK(http.ResponseWriter, *http.Request) {}

func TestHTTPFieldsNameAllLimitsBeforeTheFirstDecision(t *testing.T) {
	f := newFixture(t)
	perPath := f.limiter(ratelimit.TokenBucket(ratelimit.PerMinute(10), 10).Named("path"), "path")
	total := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(12)).Named("total"), "total")
	stack, err := ratelimit.All(ratelimit.By(perPath, func(r *http.Request) (string, error) { return r.URL.Path, nil }), ratelimit.Global[*http.Request](total))
	require.NoError(t, err)
	m, err := httplimit.New(stack, nil)
	require.NoError(t, err)
	h := m.Wrap(http.HandlerFunc(answerOK))
	resp := get(h)
	assert.Equal(t, `"path";q=10;w=60;weir-refill, "total";q=12;w=3600`, resp.Header.Get("RateLimit-Policy"), "the limit that does not bind is known without a decision")
	assert.Equal(t, `"path";r=9;t=60`, resp.Header.Get("RateLimit"))
	for range 9 {
		assert.Equal(t, http.StatusOK, get(h).StatusCode)
	}
	resp = get(h)
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	assert.Equal(t, "6", resp.Header.Get("Retry-After"))
	assert.Equal(t, httplimit.Stats{Allowed: 10, Denied: 1}, m.Stats())
}

func TestHTTPHasARetryAfterWhileRedisIsDown(t *testing.T) {
	l := unreachable(t, perMinute(10).Named("api"), nil)
	m, h := guard(t, l, httplimit.Options{Logger: slog.New(slog.DiscardHandler)}, answerOK)
	resp := get(h)
	assert.Equal(t, http.StatusServiceUnavailable, resp.StatusCode)
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	assert.Empty(t, resp.Header.Values("RateLimit"), "how much is left is not known")
	assert.Equal(t, httplimit.Stats{Failed: 1}, m.Stats())
}

func TestHTTPSettlesOverTheNetwork(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(perMinute(10), "settled")
	status := http.StatusInternalServerError
	_, h := guard(t, l, httplimit.Options{Settle: httplimit.RefundServerErrors}, func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(status) })
	get(h)
	assert.Equal(t, 10, f.left(l, "/"), "a server error is given back")
	status = http.StatusOK
	f.resetStats()
	get(h)
	assert.Equal(t, 1, f.stats()["evalsha"], "a request that has cost what it was charged needs no second call")
	assert.Equal(t, 9, f.left(l, "/"))
}

func TestLeakyBucketsDelayRequestsThatAreSettled(t *testing.T) {
	f := newFixture(t)
	leaky := f.limiter(ratelimit.LeakyBucket(ratelimit.PerSecond(50), 5), "leaky")
	stack, err := ratelimit.All(ratelimit.By(leaky, func(r *http.Request) (string, error) { return r.URL.Path, nil }))
	require.NoError(t, err)
	m, err := httplimit.New(stack, &httplimit.Options{Settle: httplimit.RefundServerErrors})
	require.NoError(t, err)
	h := m.Wrap(http.HandlerFunc(answerOK))
	for range 3 { // the limiter's clock stands still, so the second and the third request are held
		assert.Equal(t, http.StatusOK, get(h).StatusCode)
	}
	assert.Equal(t, httplimit.Stats{Allowed: 3}, m.Stats())
	assert.Equal(t, 2, f.left(leaky, "/"))
}

// The server is out of memory while a handler runs, and refuses writes, so the settlement certainly has no effect.
func TestAFailedSettlementIsReportedOnceASecondAndTheChargeStays(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(perMinute(10), "unsettled")
	memory := func(limit string) { require.NoError(t, f.client.ConfigSet(t.Context(), "maxmemory", limit).Err()) }
	now, log := time.Unix(1_700_000_000, 0), new(bytes.Buffer)
	m, h := guard(t, l, httplimit.Options{
		Settle: httplimit.RefundServerErrors,
		Logger: slog.New(slog.NewTextHandler(log, nil)),
		Now:    func() time.Time { return now },
	}, func(w http.ResponseWriter, _ *http.Request) {
		memory("1")
		w.WriteHeader(http.StatusInternalServerError)
	})
	for range 5 {
		assert.Equal(t, http.StatusInternalServerError, get(h).StatusCode, "the handler's answer stands")
		memory("0")
	}
	assert.Equal(t, 1, bytes.Count(log.Bytes(), []byte("\n")), "%s", log)
	assert.Contains(t, log.String(), "charge not settled")
	assert.Contains(t, log.String(), "unlogged=0")
	now = now.Add(time.Second)
	get(h)
	memory("0")
	assert.Contains(t, log.String(), "unlogged=4")
	assert.Equal(t, httplimit.Stats{Allowed: 6, Unsettled: 6}, m.Stats())
	assert.Equal(t, 4, f.left(l, "/"), "what was charged stays charged")
}

func TestHTTPFailsOpenOrClosedWhenTheServerIsKilled(t *testing.T) {
	for name, row := range map[string]struct {
		open   bool
		status int
		stats  httplimit.Stats
	}{
		"open":   {true, http.StatusOK, httplimit.Stats{Allowed: 1, FailedOpen: 3}},
		"closed": {false, http.StatusServiceUnavailable, httplimit.Stats{Allowed: 1, Failed: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			s := startServer(t)
			client := redis.NewClient(&redis.Options{Addr: s.addr, DialerRetries: 1})
			t.Cleanup(func() { client.Close() })
			l, err := New(client, perMinute(10), &Options{Name: "killed", Timeout: 10 * time.Second})
			require.NoError(t, err)
			var causes []error
			m, h := guard(t, l, httplimit.Options{
				FailOpen:   row.open,
				Settle:     httplimit.RefundServerErrors,
				Logger:     slog.New(slog.DiscardHandler),
				OnDecision: func(e httplimit.Event) { causes = append(causes, e.Err) },
			}, func(http.ResponseWriter, *http.Request) { s.kill() })
			assert.Equal(t, http.StatusOK, get(h).StatusCode)
			for range 3 {
				assert.Equal(t, row.status, get(h).StatusCode)
			}
			require.Len(t, causes, 4)
			assert.NoError(t, causes[0])
			for _, err := range causes[1:] {
				assert.ErrorIs(t, err, ratelimit.ErrUnavailable)
			}
			assert.Equal(t, row.stats, m.Stats())
		})
	}
}
