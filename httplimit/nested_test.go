package httplimit_test

import (
	"net/http"
	"net/http/httptest"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// nest wraps one middleware for each limit around the next, the first outermost.
func nest(t *testing.T, clock *fakeClock, dialect httplimit.Dialect, limits ...ratelimit.Limit) http.Handler {
	h := http.Handler(ok)
	for i := len(limits) - 1; i >= 0; i-- {
		h = middleware(t, limiterOf(t, clock, limits[i]), httplimit.Options{Dialect: dialect, Now: clock.wall}).Wrap(h)
	}
	return h
}

func TestOlderDialectsShowTheStricterOfNestedLimits(t *testing.T) {
	few, many := ratelimit.FixedWindow(ratelimit.PerMinute(3)), ratelimit.FixedWindow(ratelimit.PerMinute(9))
	long := ratelimit.FixedWindow(ratelimit.PerHour(3))
	for name, row := range map[string]struct {
		outer, inner       ratelimit.Limit
		limit, left, reset string
	}{
		"outer leaves less":                    {few, many, "3", "2", "60"},
		"inner leaves less":                    {many, few, "3", "2", "60"},
		"both leave as much, outer for longer": {long, few, "3", "2", "3600"},
		"both leave as much, inner for longer": {few, long, "3", "2", "3600"},
		"inner has nothing to tell":            {few, ratelimit.Unlimited(), "3", "2", "60"},
	} {
		t.Run(name, func(t *testing.T) {
			resp := get(nest(t, new(fakeClock), httplimit.DialectXDelta, row.outer, row.inner))
			assert.Equal(t, []string{row.limit}, resp.Header.Values("X-RateLimit-Limit"))
			assert.Equal(t, []string{row.left}, resp.Header.Values("X-RateLimit-Remaining"))
			assert.Equal(t, []string{row.reset}, resp.Header.Values("X-RateLimit-Reset"))
		})
	}
}

func TestOlderDialectsShowTheLimitThatDenies(t *testing.T) {
	clock := new(fakeClock)
	outer := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerDay(4))), httplimit.Options{Dialect: httplimit.DialectDraft06})
	cost := 3
	inner := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(5))),
		httplimit.Options{Dialect: httplimit.DialectDraft06, Cost: func(*http.Request) int { return cost }})
	h := outer.Wrap(inner.Wrap(ok))
	get(h)
	clock.advance(10 * time.Second)
	denied := get(h).Header
	assert.Equal(t, []string{"5", "2", "50"},
		[]string{denied.Get("RateLimit-Limit"), denied.Get("RateLimit-Remaining"), denied.Get("RateLimit-Reset")}, "though the outer leaves 2 of 4")
	cost = 6
	exceeds := get(h).Header
	assert.Equal(t, []string{"4", "2", "86390"},
		[]string{exceeds.Get("RateLimit-Limit"), exceeds.Get("RateLimit-Remaining"), exceeds.Get("RateLimit-Reset")}, "three figures of one limit")
}

// A middleware between two others passes the refusal on, and its own mark that a request was served.
func TestASettlingMiddlewareBetweenOthersPassesTheRefusalOn(t *testing.T) {
	outer := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(100)))
	between := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(60))), httplimit.Options{Settle: httplimit.RefundServerErrors})
	inner := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(1))), httplimit.Options{})
	h := middleware(t, outer, httplimit.Options{}).Wrap(between.Wrap(inner.Wrap(ok)))
	for range 5 {
		get(h)
	}
	d, err := outer.Peek(t.Context(), with(), 1)
	require.NoError(t, err)
	assert.Equal(t, 99, d.Remaining)
}

// If an inner limit refuses a request, the request was not served. So it costs the outer
// limit nothing, with anything in between. Package edge tests the kinds of limits.
func TestTheOuterMiddlewareGivesBackWhatTheInnerOneRefuses(t *testing.T) {
	window := ratelimit.FixedWindow(ratelimit.PerHour(100))
	teapot := func(w http.ResponseWriter, _ httplimit.Event) { w.WriteHeader(http.StatusTeapot) }
	for outerName, outer := range map[string]httplimit.Options{
		"by default": {}, "without fields": {Dialect: httplimit.DialectNone}, "settled": {Settle: httplimit.RefundServerErrors}, "a shadow": {Shadow: true},
	} {
		for innerName, inner := range map[string]httplimit.Options{"a rate": {}, "an answer of its own": {OnDenied: teapot}} {
			for betweenName, between := range map[string]func(http.Handler) http.Handler{
				"nothing": func(h http.Handler) http.Handler { return h },
				"a mux": func(h http.Handler) http.Handler {
					mux := http.NewServeMux()
					mux.Handle("/", h)
					return mux
				},
				"a timeout": func(h http.Handler) http.Handler { return http.TimeoutHandler(h, time.Minute, "") },
				"a limit":   middleware(t, limiterOf(t, new(fakeClock), window), httplimit.Options{}).Wrap,
			} {
				t.Run(outerName+"/"+innerName+"/"+betweenName, func(t *testing.T) {
					l, served := limiterOf(t, new(fakeClock), window), 0
					one := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(1))), inner)
					h := middleware(t, l, outer).Wrap(between(one.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served++ }))))
					for range 50 {
						get(h)
					}
					assert.Equal(t, 1, served)
					assert.Equal(t, 99, left(t, l))
				})
			}
		}
	}
}

func TestWhatAnInflightInsideShedsIsGivenBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(100)))
		m, _ := newInflight(t, 1, nil, nil)
		release := make(chan struct{})
		h := middleware(t, limiter, httplimit.Options{}).Wrap(m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { <-release })))
		var wg sync.WaitGroup
		for range 50 {
			wg.Go(func() { serve(h, tenantRequest("acme")) })
			synctest.Wait()
		}
		assert.Equal(t, 99, left(t, limiter))
		close(release)
		wg.Wait()
		assert.EqualValues(t, 49, m.Stats().Shed)
		assert.Equal(t, 99, left(t, limiter))
	})
}

// A handler may pass several requests on. If one is served, the whole request is charged.
func TestAHandlerThatServesAPartOfARequestIsCharged(t *testing.T) {
	outer := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(100)))
	inner := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(3))), httplimit.Options{}).Wrap(ok)
	h := middleware(t, outer, httplimit.Options{}).Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		for range 2 { // a batch's parts
			inner.ServeHTTP(httptest.NewRecorder(), r)
		}
	}))
	for _, want := range []int{99, 98, 98, 98} { // both are served, one is, none is
		get(h)
		assert.Equal(t, want, left(t, outer))
	}
}

// The handler's findings about its request reach the code around the limit.
func TestTheRouteAndItsValuesReachTheCodeAroundTheLimit(t *testing.T) {
	mux := http.NewServeMux()
	mux.Handle("GET /items/{id}/{rest...}", ok)
	for _, opts := range []httplimit.Options{{}, {Settle: httplimit.RefundServerErrors}} {
		limiter := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerHour(100)))
		r := httptest.NewRequest("GET", "/items/7/a/b", nil)
		send(middleware(t, limiter, opts).Wrap(mux), r)
		assert.Equal(t, "GET /items/{id}/{rest...}", r.Pattern)
		assert.Equal(t, "7", r.PathValue("id"))
		assert.Equal(t, "a/b", r.PathValue("rest"))
	}
}

func TestACostBelowZeroRefusesTheRequestAsMalformed(t *testing.T) {
	var seen httplimit.Event
	opts := httplimit.Options{Cost: func(*http.Request) int { return -1 }, KeyCode: 401, FailOpen: true, OnDecision: func(e httplimit.Event) { seen = e }}
	m := middleware(t, &stub{}, opts)
	resp := get(m.Wrap(ok))
	assert.Equal(t, http.StatusBadRequest, resp.StatusCode)
	assert.Empty(t, resp.Header["Www-Authenticate"])
	assert.Contains(t, body(t, resp), `"status":400`)
	assert.EqualError(t, seen.Err, "httplimit: Options.Cost refuses the request: it is -1")
	opts.OnError = func(w http.ResponseWriter, _ httplimit.Event) { w.WriteHeader(http.StatusUnprocessableEntity) }
	assert.Equal(t, http.StatusUnprocessableEntity, get(middleware(t, &stub{}, opts).Wrap(ok)).StatusCode)
}
