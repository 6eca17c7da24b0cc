package readme

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/go-chi/chi/v5"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/proofs/internal/redisserver"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/promlimit"
	"github.com/weir-go/ratelimit/redislimit"
)

// guarded is the code of failover/README.md.
func guarded(client *redis.Client, nodes int, reg prometheus.Registerer) (*failover.Limiter[string], error) {
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(800), 800).Named("api")
	shared, err := redislimit.New(client, limit, &redislimit.Options{Timeout: 40 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	local, err := ratelimit.New[string](failover.Share(limit, nodes), nil) // the share that each of the processes enforces alone
	if err != nil {
		return nil, err
	}
	limiter, err := failover.New[string](shared, local, nil)
	if err != nil {
		return nil, err
	}
	metrics, err := promlimit.New(reg)
	if err != nil {
		return nil, err
	}
	return limiter, metrics.Register("api", limiter)
}

func TestFailoverAnswersWhileRedisIsDown(t *testing.T) {
	client := redis.NewClient(&redis.Options{Addr: "127.0.0.1:1"}) // no server listens there
	defer client.Close()
	reg := prometheus.NewRegistry()
	limiter, err := guarded(client, 8, reg)
	require.NoError(t, err)
	d, err := limiter.Take(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.True(t, d.Degraded)
	assert.Equal(t, ratelimit.TokenBucket(ratelimit.Per(800, 8*time.Second), 100).Named("api"), d.Limit)
	count, err := testutil.GatherAndCount(reg, "ratelimit_failover_decisions_total")
	require.NoError(t, err)
	assert.Equal(t, 2, count)
}

// leased is the code of lease/README.md.
func leased(client *redis.Client) (*lease.Limiter[string], error) {
	limit := ratelimit.TokenBucket(ratelimit.PerHour(1000), 100_000).Named("api")
	shared, err := redislimit.New(client, limit, &redislimit.Options{Timeout: 500 * time.Millisecond})
	if err != nil {
		return nil, err
	}
	return lease.New[string](shared, &lease.Options[string]{MaxBatch: 1000})
}

func stop(ctx context.Context, limiter *lease.Limiter[string]) error {
	return limiter.Flush(ctx)
}

func TestALeaseSavesRoundTrips(t *testing.T) {
	limiter, err := leased(redisserver.Start(t))
	require.NoError(t, err)
	for range 50_000 {
		for try := 0; !limiter.Allow("tenant:42", 1); try++ { // a busy machine may answer too late, but not every time
			require.Less(t, try, 20)
		}
	}
	require.Eventually(t, func() bool { return stop(t.Context(), limiter) == nil }, 30*time.Second, time.Millisecond)
	stats := limiter.Stats()
	assert.Less(t, stats.RoundTrips, stats.Decisions/100)
}

// ok is a handler that answers 200 and writes nothing.
func ok(http.ResponseWriter, *http.Request) {}

// routers is the code of httplimit/README.md.
func routers(limit *httplimit.Middleware) map[string]http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /items/{id}", ok)
	stdlib := limit.Wrap(mux)

	r := chi.NewRouter()
	r.Use(limit.Wrap)
	r.Get("/items/{id}", ok)

	g := gin.New()
	g.GET("/items/:id", func(*gin.Context) {})
	overGin := limit.Wrap(g) // wraps the whole engine

	return map[string]http.Handler{"net/http": stdlib, "chi": r, "gin": overGin}
}

func TestEachRouterIsLimited(t *testing.T) {
	gin.SetMode(gin.ReleaseMode)
	for name := range routers(ratelimit.Must(httplimit.PerIP(ratelimit.Unlimited(), nil))) {
		limit, err := httplimit.PerIP(ratelimit.FixedWindow(ratelimit.PerHour(2)), nil)
		require.NoError(t, err)
		h := routers(limit)[name]
		for _, want := range []int{200, 200, 429} {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/items/7", nil))
			assert.Equal(t, want, w.Code, name)
		}
	}
}
