package httplimit_test

import (
	"context"
	"math"
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

func TestEachDialectHasItsFields(t *testing.T) {
	type fields = map[string]string
	for _, row := range []struct {
		dialect         httplimit.Dialect
		allowed, denied fields
	}{
		{httplimit.DialectDraft11,
			fields{"RateLimit-Policy": `"w";q=2;w=60`, "RateLimit": `"w";r=0;t=50`},
			fields{"RateLimit-Policy": `"w";q=2;w=60`, "RateLimit": `"w";r=0;t=49`}},
		{httplimit.DialectDraft06,
			fields{"RateLimit-Limit": "2", "RateLimit-Remaining": "0", "RateLimit-Reset": "50"},
			fields{"RateLimit-Limit": "2", "RateLimit-Remaining": "0", "RateLimit-Reset": "49"}},
		{httplimit.DialectXDelta,
			fields{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "50"},
			fields{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "49"}},
		{httplimit.DialectXEpoch, // always a minute after 12:00:00
			fields{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1795262460"},
			fields{"X-RateLimit-Limit": "2", "X-RateLimit-Remaining": "0", "X-RateLimit-Reset": "1795262460"}},
		{httplimit.DialectNone, fields{}, fields{}},
	} {
		clock := new(fakeClock)
		h := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("w")),
			httplimit.Options{Dialect: row.dialect, Now: clock.wall}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
		get(h)
		clock.advance(10 * time.Second)
		assertOnly(t, row.allowed, get(h).Header)
		clock.advance(1500 * time.Millisecond)
		denied := get(h).Header
		assert.Equal(t, "49", denied.Get("Retry-After"), "whatever the dialect")
		for _, name := range []string{"Retry-After", "Content-Type", "Content-Length", "Cache-Control"} {
			denied.Del(name)
		}
		assertOnly(t, row.denied, denied)
	}
}

func assertOnly(t *testing.T, want map[string]string, got http.Header) {
	t.Helper()
	for name, value := range want {
		assert.Equal(t, value, got.Get(name), name)
	}
	assert.Len(t, got, len(want), "%v", got)
}

// Package limitfields tests draft 11's lists, names and figures.
func TestListsHaveThePoliciesOfAllLayersAndMiddlewares(t *testing.T) {
	clock := new(fakeClock)
	of := func(limits ...ratelimit.Limit) *httplimit.Middleware {
		return middleware(t, limiterOf(t, clock, limits...), httplimit.Options{QuotaUnit: func(l ratelimit.Limit) string {
			return map[string]string{"bytes": "content-bytes"}[l.Name]
		}})
	}
	perMinute := func(n int, name string) ratelimit.Limit {
		return ratelimit.FixedWindow(ratelimit.PerMinute(n)).Named(name)
	}
	inner := of(perMinute(3, "")).Wrap(ok)
	h := of(perMinute(9, "a"), perMinute(90, "bytes")).Wrap(of(perMinute(8, "Default")).Wrap(inner))
	resp := get(h)
	assert.Equal(t, []string{`"a";q=9;w=60, "bytes";q=90;w=60;qu="content-bytes"`, `"Default";q=8;w=60`, `"default-2";q=3;w=60`}, resp.Header.Values("RateLimit-Policy"))
	assert.Equal(t, []string{`"a";r=8;t=60`, `"Default";r=7;t=60`, `"default-2";r=2;t=60`}, resp.Header.Values("RateLimit"))
	assert.Equal(t, []string{`"default";q=3;w=60`}, get(inner).Header.Values("RateLimit-Policy"), "alone")
	get(h)
	for range 2 { // the second answer is the first one, from the cache
		assert.Contains(t, body(t, get(h)), `"violated-policies":["default-2"]`)
	}
}

// The older dialects name the time until the key is fresh, unless the request is denied or nothing is left.
func TestResetsOfTheOlderDialects(t *testing.T) {
	minute, counter := ratelimit.FixedWindow(ratelimit.PerMinute(5)), ratelimit.SlidingCounter(ratelimit.PerMinute(5))
	for name, row := range map[string]struct {
		decision ratelimit.Decision
		want     string
		epoch    int64 // Unix seconds from noon
	}{
		"fresh soon":                   {ratelimit.Decision{Allowed: true, Limit: minute, Remaining: 1, ResetAfter: time.Nanosecond}, "1", 1},
		"a reset of another layer":     {ratelimit.Decision{Allowed: true, Limit: minute, Remaining: 1, ResetAfter: 24 * time.Hour}, "60", 60},
		"a sliding counter":            {ratelimit.Decision{Allowed: true, Limit: counter, Remaining: 1, ResetAfter: 90 * time.Second}, "90", 90},
		"a counter, and another layer": {ratelimit.Decision{Allowed: true, Limit: counter, Remaining: 1, ResetAfter: 24 * time.Hour}, "120", 120},
		"nothing left":                 {ratelimit.Decision{Allowed: true, Limit: counter, NextAfter: 7 * time.Second, ResetAfter: time.Minute}, "7", 7},
		"something left":               {ratelimit.Decision{Allowed: true, Limit: counter, Remaining: 1, NextAfter: 7 * time.Second, ResetAfter: time.Minute}, "60", 60},
		// only another engine can return this
		"a retry beside a permission":    {ratelimit.Decision{Allowed: true, Limit: minute, ResetAfter: time.Second, RetryAfter: time.Hour}, "1", 1},
		"a denial":                       {ratelimit.Decision{Limit: minute, RetryAfter: 2500 * time.Millisecond, NextAfter: time.Second, ResetAfter: time.Minute}, "3", 3},
		"a denial without a time":        {ratelimit.Decision{Limit: minute, NextAfter: time.Second, ResetAfter: time.Minute}, "60", 60},
		"a reset before now":             {ratelimit.Decision{Allowed: true, Limit: minute, Remaining: -5, ResetAfter: -time.Hour}, "0", -3600},
		"a limit without a window":       {ratelimit.Decision{Allowed: true, Limit: ratelimit.Limit{Algorithm: ratelimit.AlgorithmFixedWindow, Rate: ratelimit.Rate{Units: 5}}, ResetAfter: time.Hour}, "1", 1},
		"a limit that is never regained": {ratelimit.Decision{Allowed: true, Limit: ratelimit.Limit{Algorithm: ratelimit.AlgorithmTokenBucket, Burst: 1}, ResetAfter: time.Hour}, "3600", 3600},
	} {
		for dialect, field := range map[httplimit.Dialect]string{httplimit.DialectDraft06: "RateLimit-Reset", httplimit.DialectXDelta: "X-RateLimit-Reset", httplimit.DialectXEpoch: "X-RateLimit-Reset"} {
			want := row.want
			if dialect == httplimit.DialectXEpoch {
				want = itoa(int(epoch.Unix() + row.epoch))
			}
			h := middleware(t, &stub{decision: row.decision}, httplimit.Options{Dialect: dialect, Now: new(fakeClock).wall}).Wrap(ok)
			assert.Equal(t, want, get(h).Header.Get(field), "%s, dialect %v", name, dialect)
		}
	}
}

// Some names have characters that need an escape or fit no field. One time is the longest possible.
func TestNamesAndTimesOfDenialsFitTheirFields(t *testing.T) {
	for name, row := range map[string]struct{ policy, violated string }{
		`say "a\b", c`:         {`"say \"a\\b\", c";q=1;w=60`, `"violated-policies":["say \"a\\b\", c"]`},
		"a\r\nSet-Cookie: x=y": {``, `"status":429}`},
	} {
		limit := ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named(name)
		resp := get(middleware(t, &stub{decision: ratelimit.Decision{Limit: limit, RetryAfter: math.MaxInt64}}, httplimit.Options{}).Wrap(ok))
		assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
		assert.Equal(t, row.policy, resp.Header.Get("RateLimit-Policy"))
		assert.Equal(t, row.policy == "", resp.Header.Get("RateLimit") == "")
		assert.Equal(t, "9223372037", resp.Header.Get("Retry-After"))
		assert.Contains(t, body(t, resp), row.violated)
	}
}

func TestFieldValuesAreNotSharedBetweenResponses(t *testing.T) {
	m := middleware(t, limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("five")), httplimit.Options{})
	h := m.Wrap(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		for _, lines := range w.Header() {
			lines[0] = "scribbled"
			_ = append(lines, "on")
		}
	}))
	get(h)
	resp := get(m.Wrap(ok))
	assert.Equal(t, `"five";q=5;w=60`, resp.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"five";r=3;t=60`, resp.Header.Get("RateLimit"))
}

// The remaining budget is in units of the caller's cost, so a layer with its own cost has none.
func TestFieldsOmitTheRemainingBudgetOfALayerWithItsOwnCost(t *testing.T) {
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("requests"), &ratelimit.Options[string]{Clock: new(fakeClock)}))
	y := ratelimit.By(l, everyone)
	y.Cost = func(*http.Request) int { return 1 }
	all := ratelimit.Must(ratelimit.All(y))
	for dialect, names := range map[httplimit.Dialect][2]string{
		httplimit.DialectDraft11: {"RateLimit-Policy", "RateLimit"}, httplimit.DialectXDelta: {"X-RateLimit-Limit", "X-RateLimit-Remaining"},
	} {
		l.Reset(context.Background(), "everyone")
		h := middleware(t, all, httplimit.Options{Dialect: dialect}).Wrap(ok)
		resp := get(h)
		assert.NotEmpty(t, resp.Header.Get(names[0]))
		assert.Empty(t, resp.Header.Get(names[1]))
		get(h)
		assert.NotEmpty(t, get(h).Header.Get(names[1]), "nothing is left")
		assert.Equal(t, http.StatusTooManyRequests, get(h).StatusCode)
	}
}

// Only one dialect writes names.
func TestStackOfUnnamedLimitsIsFineWhereNoNameIsSent(t *testing.T) {
	all := limiterOf(t, new(fakeClock), ratelimit.FixedWindow(ratelimit.PerMinute(5)), ratelimit.FixedWindow(ratelimit.PerHour(50)))
	for dialect := httplimit.DialectDraft06; dialect <= httplimit.DialectNone; dialect++ {
		m, err := httplimit.New(all, &httplimit.Options{Dialect: dialect})
		if assert.NoError(t, err) {
			assert.Equal(t, http.StatusOK, get(m.Wrap(ok)).StatusCode)
		}
	}
	_, err := httplimit.New(all, nil)
	assert.ErrorContains(t, err, "same policy name")
}
