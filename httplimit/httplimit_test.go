package httplimit_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestMiddlewareAllowsUpToTheLimitOverTheWire(t *testing.T) {
	clock := new(fakeClock)
	limit := ratelimit.TokenBucket(ratelimit.PerMinute(30), 3).Named("burst")
	m := middleware(t, limiterOf(t, clock, limit), httplimit.Options{})
	overBoth(t, m.Wrap(ok), func(t *testing.T, client *http.Client, url string) {
		clock.advance(time.Hour)
		for _, left := range []string{"2;t=6", "1;t=6", "0;t=2"} {
			resp, err := client.Get(url)
			require.NoError(t, err)
			assert.Equal(t, http.StatusOK, resp.StatusCode)
			assert.Equal(t, "ok", body(t, resp))
			assert.Equal(t, `"burst";q=3;w=6;weir-refill`, resp.Header.Get("RateLimit-Policy"))
			assert.Equal(t, `"burst";r=`+left, resp.Header.Get("RateLimit"))
			assert.Empty(t, resp.Header.Get("Retry-After"))
			assert.Empty(t, resp.Header.Get("Cache-Control"))
		}
		clock.advance(500 * time.Millisecond)
		resp, err := client.Get(url)
		require.NoError(t, err)
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, "2", resp.Header.Get("Retry-After"), "1.5 s, rounded up")
		assert.Equal(t, `"burst";q=3;w=6;weir-refill`, resp.Header.Get("RateLimit-Policy"))
		assert.Equal(t, `"burst";r=0;t=2`, resp.Header.Get("RateLimit"))
		assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
		assert.Equal(t, "application/problem+json", resp.Header.Get("Content-Type"))
		assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded",
			"title":"Quota exceeded","status":429,"violated-policies":["burst"]}`, body(t, resp))
	})
}

func TestEachRequestCostsTheResultOfCost(t *testing.T) {
	clock := new(fakeClock)
	m := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(10))), httplimit.Options{
		Cost: func(r *http.Request) int { return len(r.URL.Query()["id"]) },
	})
	h := m.Wrap(ok)
	query := func(query string) *http.Response { return send(h, httptest.NewRequest("GET", "/?"+query, nil)) }
	assert.Equal(t, `"default";r=7;t=60`, query("id=1&id=2&id=3").Header.Get("RateLimit"))
	assert.Equal(t, `"default";r=7;t=60`, query("").Header.Get("RateLimit"), "a cost of 0 always passes")
	assert.Equal(t, `"default";r=6;t=60`, query("id=1").Header.Get("RateLimit"))
	assert.Equal(t, httplimit.Stats{Allowed: 3}, m.Stats())
}

func TestSkippedRequestsDoNotReachTheLimiter(t *testing.T) {
	limiter := &stub{}
	m := middleware(t, limiter, httplimit.Options{
		Skip: func(r *http.Request) bool { return r.URL.Path == "/healthz" },
	})
	h := m.Wrap(ok)
	resp := send(h, httptest.NewRequest("GET", "/healthz", nil))
	assert.Equal(t, http.StatusOK, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("RateLimit"))
	assert.Empty(t, limiter.costs)
	assert.Equal(t, http.StatusTooManyRequests, get(h).StatusCode)
	assert.Equal(t, httplimit.Stats{Skipped: 1, Denied: 1}, m.Stats())
}

func TestShadowModeDecidesButDeniesNothing(t *testing.T) {
	clock := new(fakeClock)
	var seen []httplimit.Outcome
	m := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(2))), httplimit.Options{
		Shadow:     true,
		OnDecision: func(e httplimit.Event) { seen = append(seen, e.Outcome) },
		Cost:       func(r *http.Request) int { return map[string]int{"/": 1, "/huge": 3, "/broken": -1}[r.URL.Path] },
	})
	h := m.Wrap(ok)
	for _, path := range []string{"/", "/", "/", "/huge", "/broken"} {
		resp := send(h, httptest.NewRequest("GET", path, nil))
		assert.Equal(t, http.StatusOK, resp.StatusCode)
		assert.Equal(t, "ok", body(t, resp))
		for name := range resp.Header {
			assert.Equal(t, "Content-Type", name, "the response is as it would be without")
		}
	}
	assert.Equal(t, httplimit.Stats{Allowed: 2, Denied: 1, Exceeds: 1, Rejected: 1}, m.Stats())
	assert.Equal(t, []httplimit.Outcome{httplimit.OutcomeAllowed, httplimit.OutcomeAllowed, httplimit.OutcomeDenied,
		httplimit.OutcomeExceeds, httplimit.OutcomeRejected}, seen)
}

func TestOwnAnswersReplaceTheProblems(t *testing.T) {
	answer := func(status int) func(http.ResponseWriter, httplimit.Event) {
		return func(w http.ResponseWriter, e httplimit.Event) { http.Error(w, e.Outcome.String(), status) }
	}
	opts := httplimit.Options{OnDenied: answer(503), OnExceeds: answer(413), OnError: answer(401)}
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("five")
	for name, row := range map[string]struct {
		limiter *stub
		status  int
		text    string
		headers map[string]string
	}{
		"denied": {&stub{decision: ratelimit.Decision{Limit: limit, RetryAfter: time.Minute}}, 503, "denied\n",
			map[string]string{"Retry-After": "60", "RateLimit": `"five";r=0;t=60`, "Cache-Control": "no-store"}},
		"exceeds": {&stub{decision: ratelimit.Decision{Limit: limit}, err: ratelimit.ErrExceedsLimit}, 413, "exceeds\n",
			map[string]string{"Retry-After": "", "RateLimit-Policy": `"five";q=5;w=60`, "Cache-Control": "no-store"}},
		"rejected": {&stub{err: keyfunc.ErrNoKey}, 401, "rejected\n",
			map[string]string{"Retry-After": "", "RateLimit": "", "Cache-Control": "no-store"}},
	} {
		t.Run(name, func(t *testing.T) {
			resp := get(middleware(t, row.limiter, opts).Wrap(ok))
			assert.Equal(t, row.status, resp.StatusCode)
			assert.Equal(t, row.text, body(t, resp))
			for field, want := range row.headers {
				assert.Equal(t, want, resp.Header.Get(field), field)
			}
		})
	}
}

func TestCostThatCanNeverPassIsForbiddenWithoutRetryAfter(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("burst")),
		httplimit.Options{Cost: func(*http.Request) int { return 6 }})
	resp := get(m.Wrap(ok))
	assert.Equal(t, http.StatusForbidden, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("Retry-After"))
	assert.Equal(t, `"burst";q=5;w=5;weir-refill`, resp.Header.Get("RateLimit-Policy"))
	assert.Empty(t, resp.Header.Get("RateLimit"), "all 5 are left")
	assert.Equal(t, "no-store", resp.Header.Get("Cache-Control"))
	assert.JSONEq(t, `{"type":"https://iana.org/assignments/http-problem-types#quota-exceeded","title":"Quota exceeded","status":403,
		"detail":"The request costs more than its quota ever holds. Do not retry it.","violated-policies":["burst"]}`, body(t, resp))
	assert.Equal(t, httplimit.Stats{Exceeds: 1}, m.Stats())
}

func TestOnDecisionIsCalledBeforeTheRequestIsServed(t *testing.T) {
	var order []string
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("one")), httplimit.Options{
		OnDecision: func(e httplimit.Event) {
			order = append(order, e.Request.URL.Path+" "+e.Outcome.String()+" by "+e.Decision.Limit.Name)
		},
	})
	h := m.Wrap(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { order = append(order, r.URL.Path+" served") }))
	send(h, httptest.NewRequest("GET", "/a", nil))
	send(h, httptest.NewRequest("GET", "/b", nil))
	assert.Equal(t, []string{"/a allowed by one", "/a served", "/b denied by one"}, order)
}

// Package edge has the other tests of holds.
func TestLeakyBucketHoldsTheRequestUntilItsTurn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		begin, served := time.Now(), make(chan time.Duration, 3)
		h := middleware(t, limiterOf(t, nil, ratelimit.LeakyBucket(ratelimit.PerSecond(2), 3)), httplimit.Options{}).
			Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { served <- time.Since(begin) }))
		get(h)
		ctx, cancel := context.WithTimeout(t.Context(), time.Millisecond)
		defer cancel()
		late := send(h, httptest.NewRequestWithContext(ctx, "GET", "/", nil))
		assert.Equal(t, http.StatusServiceUnavailable, late.StatusCode, "its deadline comes before its turn")
		assert.Equal(t, "no-store", late.Header.Get("Cache-Control"))
		assert.JSONEq(t, `{"type":"about:blank","title":"Service Unavailable","status":503}`, body(t, late))
		for range 2 {
			go get(h)
			synctest.Wait()
		}
		assert.Equal(t, http.StatusTooManyRequests, get(h).StatusCode, "the queue is full")
		time.Sleep(time.Hour)
		assert.Equal(t, []time.Duration{0, 500 * time.Millisecond, time.Second}, []time.Duration{<-served, <-served, <-served})
	})
}

func TestNewRefusesOptionsThatCannotWork(t *testing.T) {
	good := limiterOf(t, nil, ratelimit.Unlimited())
	named := func(names ...string) ratelimit.Limiter[*http.Request] {
		s := new(listing)
		for _, name := range names {
			s.limits = append(s.limits, ratelimit.Limit{Name: name, Algorithm: ratelimit.AlgorithmFixedWindow, Rate: ratelimit.PerSecond(1)})
		}
		return s
	}
	for name, row := range map[string]struct {
		limiter ratelimit.Limiter[*http.Request]
		opts    httplimit.Options
		want    string
	}{
		"no limiter":              {nil, httplimit.Options{}, "limiter is nil"},
		"keyed by the request":    {ratelimit.Must(ratelimit.New[*http.Request](ratelimit.Unlimited(), nil)), httplimit.Options{}, "the request itself"},
		"unknown dialect":         {good, httplimit.Options{Dialect: 9}, "Options.Dialect is 9, want DialectDraft11, "},
		"first unknown dialect":   {good, httplimit.Options{Dialect: httplimit.DialectNone + 1}, "Options.Dialect is 5"},
		"header field with space": {good, httplimit.Options{DegradedHeader: "X Degraded"}, `Options.DegradedHeader is "X Degraded"`},
		"nothing to settle with":  {new(stub), httplimit.Options{Settle: httplimit.RefundServerErrors}, "Options.Settle needs a ratelimit.Reserver"},
		"name with a line break":  {named("a\r\nSet-Cookie: x"), httplimit.Options{}, "at position 1"},
		"name beyond ASCII":       {named("größe"), httplimit.Options{}, `has 'ö' at position 2`},
		"two limits of one name":  {named("burst", "Burst"), httplimit.Options{}, `policy name "Burst"`},
		"two limits without name": {named("", ""), httplimit.Options{}, `policy name "default"`},
	} {
		t.Run(name, func(t *testing.T) {
			m, err := httplimit.New(row.limiter, &row.opts)
			assert.ErrorContains(t, err, row.want)
			assert.Nil(t, m)
			assert.Panics(t, func() { ratelimit.Must(m, err) })
		})
	}
}

func TestHandlersWrappedByOneMiddlewareShareItsLimits(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(1))), httplimit.Options{})
	assert.Equal(t, http.StatusOK, get(m.Wrap(ok)).StatusCode)
	assert.Equal(t, http.StatusTooManyRequests, get(m.Wrap(ok)).StatusCode)
}
