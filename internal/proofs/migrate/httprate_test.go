package migrate

import (
	"context"
	"errors"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strconv"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-chi/chi/v5"
	"github.com/go-chi/httprate"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

func byIP(r *http.Request) (string, error) {
	addr, err := httplimit.RemoteIP(r)
	return addr.String(), err
}

// quiet are options without a logger.
var quiet = &httplimit.Options{Logger: slog.New(slog.DiscardHandler)}

// router returns chi's router with the middleware.
func router(use func(http.Handler) http.Handler) http.Handler {
	r := chi.NewRouter()
	r.Use(use)
	r.Get("/*", handler)
	return r
}

func perHour[K comparable](n int) *ratelimit.Keyed[K] {
	return ratelimit.Must(ratelimit.New[K](ratelimit.SlidingCounter(ratelimit.PerHour(n)), nil))
}

func TestHTTPRateMiddleware(t *testing.T) {
	for name, make := range map[string]func() (theirs, ours func(http.Handler) http.Handler, err error){
		"by address": func() (theirs, ours func(http.Handler) http.Handler, err error) {
			theirs = httprate.LimitBy(3, time.Hour, byIP)
			limit, err := httplimit.PerIP(ratelimit.SlidingCounter(ratelimit.PerHour(3)), nil)
			return theirs, limit.Wrap, err
		},
		"by address, deprecated": func() (theirs, ours func(http.Handler) http.Handler, err error) {
			//lint:ignore SA1019 it is what many programs call
			theirs = httprate.LimitByIP(3, time.Hour)
			limit, err := httplimit.PerIP(ratelimit.SlidingCounter(ratelimit.PerHour(3)), nil)
			return theirs, limit.Wrap, err
		},
		"everybody together": func() (theirs, ours func(http.Handler) http.Handler, err error) {
			//lint:ignore SA1019 it is what many programs call
			theirs = httprate.LimitAll(3, time.Hour)
			all := ratelimit.Must(ratelimit.New[struct{}](ratelimit.SlidingCounter(ratelimit.PerHour(3)), nil))
			limit, err := httplimit.New(ratelimit.Must(ratelimit.All(ratelimit.Global[*http.Request](all))), nil)
			return theirs, limit.Wrap, err
		},
		"by header": func() (theirs, ours func(http.Handler) http.Handler, err error) {
			header := func(r *http.Request) (string, error) { return r.Header.Get("X-Tenant"), nil }
			theirs = httprate.LimitBy(3, time.Hour, header)
			limit, err := httplimit.New(ratelimit.Map(perHour[string](3), httplimit.Header("X-Tenant")), nil)
			return theirs, limit.Wrap, err
		},
		"by address and path": func() (theirs, ours func(http.Handler) http.Handler, err error) {
			theirs = httprate.LimitBy(3, time.Hour, httprate.JoinKeys(byIP, httprate.KeyByEndpoint))
			path := func(r *http.Request) (string, error) { return r.URL.Path, nil }
			both := perHour[keyfunc.Pair[string, string]](3)
			limit, err := httplimit.New(ratelimit.Map(both, keyfunc.Join(byIP, path)), nil)
			return theirs, limit.Wrap, err
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			theirs, ours, err := make()
			require.NoError(t, err)
			a, b := router(theirs), router(ours)
			for _, path := range []string{"/", "/other"} {
				for _, addr := range []string{"192.0.2.1:1", "192.0.2.2:1", "192.0.2.1:2"} {
					r := from(addr)
					r.URL.Path = path
					r.Header.Set("X-Tenant", "acme")
					assert.Equal(t, statuses(a, 2, r), statuses(b, 2, r), "%s: %s from %s", name, path, addr)
				}
			}
		})
	}
}

func TestHTTPRateCosts(t *testing.T) {
	theirs := func(next http.Handler) http.Handler {
		inner := httprate.LimitBy(10, time.Hour, byIP)(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner.ServeHTTP(w, r.WithContext(httprate.WithIncrement(r.Context(), cost(r))))
		})
	}
	limit, err := httplimit.PerIP(ratelimit.SlidingCounter(ratelimit.PerHour(10)), &httplimit.Options{Cost: cost})
	require.NoError(t, err)
	r := from("192.0.2.1:1")
	r.Header.Set("X-Cost", "4")
	want := statuses(router(theirs), 3, r)
	assert.Equal(t, []int{200, 200, 429}, want)
	assert.Equal(t, want, statuses(router(limit.Wrap), 3, r))
}

// cost returns the request's cost.
func cost(r *http.Request) int {
	n, _ := strconv.Atoi(r.Header.Get("X-Cost"))
	return n
}

// TestHTTPRateLimitOfARequest takes each request's limit from the user's plan.
func TestHTTPRateLimitOfARequest(t *testing.T) {
	plan := func(r *http.Request) int {
		if r.Header.Get("X-Plan") == "paid" {
			return 5
		}
		return 2
	}
	theirs := func(next http.Handler) http.Handler {
		inner := httprate.LimitBy(1, time.Hour, byIP)(next)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner.ServeHTTP(w, r.WithContext(httprate.WithRequestLimit(r.Context(), plan(r))))
		})
	}
	limitOf := func(r *http.Request) ratelimit.Limit { return ratelimit.SlidingCounter(ratelimit.PerHour(plan(r))) }
	layer := ratelimit.By(perHour[string](1), byIP)
	layer.Limit = limitOf
	limit, err := httplimit.New(ratelimit.Must(ratelimit.All(layer)), nil)
	require.NoError(t, err)
	a, b := router(theirs), router(limit.Wrap)
	for _, name := range []string{"free", "paid"} { // an upgrade keeps the spending
		r := from("192.0.2.1:1")
		r.Header.Set("X-Plan", name)
		assert.Equal(t, statuses(a, 6, r), statuses(b, 6, r), name)
	}
}

// TestHTTPRateRetryAfter: their Retry-After is the whole window, even if room comes earlier.
func TestHTTPRateRetryAfter(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, err := httplimit.PerIP(ratelimit.SlidingLog(ratelimit.PerMinute(1)), nil)
		require.NoError(t, err)
		for want, h := range map[string]http.Handler{
			"60": router(httprate.LimitBy(1, time.Minute, byIP)),
			"5":  router(limit.Wrap),
		} {
			time.Sleep(time.Until(time.Now().Truncate(time.Minute).Add(time.Minute))) // their windows begin at the clock's full minutes
			statuses(h, 1, from("192.0.2.1:1"))
			time.Sleep(55 * time.Second)
			w := httptest.NewRecorder()
			h.ServeHTTP(w, from("192.0.2.1:1"))
			assert.Equal(t, http.StatusTooManyRequests, w.Code)
			assert.Equal(t, want, w.Header().Get("Retry-After"))
		}
	})
}

// TestHTTPRateRoundsDown: with 9.4 of 10 units spent, no whole unit remains, but theirs lets one pass.
func TestHTTPRateRoundsDown(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit, err := httplimit.PerIP(ratelimit.SlidingCounter(ratelimit.Per(10, 100*time.Second)), nil)
		require.NoError(t, err)
		theirs, ours := router(httprate.LimitBy(10, 100*time.Second, byIP)), router(limit.Wrap)
		r := from("192.0.2.1:1")
		statuses(theirs, 10, r)
		statuses(ours, 10, r)
		time.Sleep(106 * time.Second) // 94 % of the previous window still counts
		assert.Equal(t, []int{200, 429}, statuses(theirs, 2, r), "the eleventh, where 10.4 would be spent")
		assert.Equal(t, []int{429, 429}, statuses(ours, 2, r))
	})
}

// TestHTTPRateAnswers428 if a key function fails, with its error's text.
func TestHTTPRateAnswers428(t *testing.T) {
	failing := func(*http.Request) (string, error) { return "", errors.New("dial tcp 10.0.0.5:6379: refused") }
	w := httptest.NewRecorder()
	router(httprate.LimitBy(1, time.Minute, failing)).ServeHTTP(w, from("192.0.2.1:1"))
	assert.Equal(t, http.StatusPreconditionRequired, w.Code)
	assert.Contains(t, w.Body.String(), "10.0.0.5")

	limit, err := httplimit.New(ratelimit.Map(perHour[string](1), failing), quiet)
	require.NoError(t, err)
	w = httptest.NewRecorder()
	router(limit.Wrap).ServeHTTP(w, from("192.0.2.1:1"))
	assert.Equal(t, http.StatusInternalServerError, w.Code)
	assert.NotContains(t, w.Body.String(), "10.0.0.5")
}

// TestHTTPRateJoinsKeysWithAColon, so two pairs can be one key.
func TestHTTPRateJoinsKeysWithAColon(t *testing.T) {
	theirs := httprate.JoinKeys(httprate.Key("a:b"), httprate.Key("c"))
	one, err := theirs(nil)
	require.NoError(t, err)
	theirs = httprate.JoinKeys(httprate.Key("a"), httprate.Key("b:c"))
	two, err := theirs(nil)
	require.NoError(t, err)
	assert.Equal(t, one, two)

	assert.NotEqual(t, keyfunc.Pair[string, string]{A: "a:b", B: "c"}, keyfunc.Pair[string, string]{A: "a", B: "b:c"})
}

// TestHTTPRateForgetsEverybodyForOneLateIncrement: an increment after the window's end clears all keys' counters.
func TestHTTPRateForgetsEverybodyForOneLateIncrement(t *testing.T) {
	window := time.Now().UTC().Truncate(time.Minute)
	counter := httprate.NewLocalLimitCounter(time.Minute)
	require.NoError(t, counter.IncrementBy("ann", window, 10))
	// the time was read earlier, and the increment comes after the window's end
	require.NoError(t, counter.IncrementBy("bob", window.Add(-time.Minute), 1))
	spent, _, err := counter.Get("ann", window, window.Add(-time.Minute))
	require.NoError(t, err)
	assert.Zero(t, spent)
}

// slowCounter is slow for one key.
type slowCounter struct {
	httprate.LimitCounter
	entered, leave chan struct{}
}

func (c *slowCounter) IncrementBy(key string, window time.Time, n int) error {
	if key == "192.0.2.1:" {
		close(c.entered)
		<-c.leave
	}
	return c.LimitCounter.IncrementBy(key, window, n)
}

// TestHTTPRateCallsItsStoreForOneRequestAtATime: a store slow for one key delays all keys.
func TestHTTPRateCallsItsStoreForOneRequestAtATime(t *testing.T) {
	counter := &slowCounter{httprate.NewLocalLimitCounter(time.Hour), make(chan struct{}), make(chan struct{})}
	h := router(httprate.LimitBy(10, time.Hour, byIP, httprate.WithLimitCounter(counter)))
	first, second := make(chan struct{}), make(chan struct{})
	go func() { statuses(h, 1, from("192.0.2.1:1")); close(first) }()
	<-counter.entered
	go func() { statuses(h, 1, from("192.0.2.2:1")); close(second) }()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	select {
	case <-second:
		t.Error("the second key was not held up")
	case <-ctx.Done():
	}
	close(counter.leave)
	<-first
	<-second
}

// docs/migrate.md has these figures, for a client that sends a request each second for an hour.
func TestHTTPRateAdmitsMoreOfASmallLimit(t *testing.T) {
	for n, want := range map[int][2]int{1: {60, 30}, 3: {180, 121}, 100: {6000, 5941}} {
		synctest.Test(t, func(t *testing.T) {
			limit, err := httplimit.PerIP(ratelimit.SlidingCounter(ratelimit.PerMinute(n)), quiet)
			require.NoError(t, err)
			a, b := router(httprate.LimitBy(n, time.Minute, byIP)), router(limit.Wrap)
			pause := time.Second
			if n == 100 {
				pause /= 10 // so that there are more requests than the limit
			}
			var got [2]int
			for begin := time.Now(); time.Since(begin) < time.Hour; time.Sleep(pause) {
				for i, h := range []http.Handler{a, b} {
					if statuses(h, 1, from("192.0.2.1:1"))[0] == http.StatusOK {
						got[i]++
					}
				}
			}
			assert.Equal(t, want, got, "%d a minute", n)
		})
	}
}
