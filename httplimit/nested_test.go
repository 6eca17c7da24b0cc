package httplimit_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
)

// nest wraps one middleware of each limit around the next, the first outermost.
func nest(t *testing.T, clock *fakeClock, dialect httplimit.Dialect, limits ...ratelimit.Limit) http.Handler {
	h := http.Handler(ok)
	for i := len(limits) - 1; i >= 0; i-- {
		h = middleware(t, limiterOf(t, clock, limits[i]), httplimit.Options{Dialect: dialect, Now: clock.wall}).Wrap(h)
	}
	return h
}

func TestNamesOfNestedMiddlewareAreDistinct(t *testing.T) {
	minute := func(n int, name string) ratelimit.Limit {
		return ratelimit.FixedWindow(ratelimit.PerMinute(n)).Named(name)
	}
	for name, row := range map[string]struct {
		limits            []ratelimit.Limit
		policies, current []string
	}{
		"without names": {[]ratelimit.Limit{minute(9, ""), minute(8, ""), minute(1, "")},
			[]string{`"default";q=9;w=60`, `"default-2";q=8;w=60`, `"default-3";q=1;w=60`},
			[]string{`"default";r=8;t=60`, `"default-2";r=7;t=60`, `"default-3";r=0;t=60`}},
		"of one name in another case": {[]ratelimit.Limit{minute(9, "ip"), minute(8, "IP")},
			[]string{`"ip";q=9;w=60`, `"IP-2";q=8;w=60`}, []string{`"ip";r=8;t=60`, `"IP-2";r=7;t=60`}},
		"whose number is taken": {[]ratelimit.Limit{minute(9, "ip-2"), minute(8, "ip"), minute(1, "ip")},
			[]string{`"ip-2";q=9;w=60`, `"ip";q=8;w=60`, `"ip-3";q=1;w=60`}, []string{`"ip-2";r=8;t=60`, `"ip";r=7;t=60`, `"ip-3";r=0;t=60`}},
	} {
		t.Run(name, func(t *testing.T) {
			h := nest(t, new(fakeClock), httplimit.DialectDraft11, row.limits...)
			resp := get(h)
			assert.Equal(t, row.policies, resp.Header.Values("RateLimit-Policy"))
			assert.Equal(t, row.current, resp.Header.Values("RateLimit"))
		})
	}
}

func TestProblemNamesThePolicyAsTheFieldsDo(t *testing.T) {
	clock := new(fakeClock)
	h := nest(t, clock, httplimit.DialectDraft11, ratelimit.FixedWindow(ratelimit.PerMinute(9)), ratelimit.FixedWindow(ratelimit.PerMinute(1)))
	get(h)
	assert.Contains(t, body(t, get(h)), `"violated-policies":["default-2"]`)
	assert.Contains(t, body(t, get(h)), `"violated-policies":["default-2"]`, "from what was kept")
}

// The same middleware around two handlers, one of which is inside another middleware.
func TestNamesAreDistinctInsideAnyMiddleware(t *testing.T) {
	clock := new(fakeClock)
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(100))
	inner := middleware(t, limiterOf(t, clock, limit), httplimit.Options{}).Wrap(ok)
	outer := func(name string) http.Handler {
		return middleware(t, limiterOf(t, clock, limit.Named(name)), httplimit.Options{}).Wrap(inner)
	}
	a, b, c := outer("a"), outer(""), inner
	for range 2 {
		assert.Equal(t, `"default";q=100;w=60`, get(a).Header.Values("RateLimit-Policy")[1])
		assert.Equal(t, `"default-2";q=100;w=60`, get(b).Header.Values("RateLimit-Policy")[1])
		assert.Equal(t, []string{`"default";q=100;w=60`}, get(c).Header.Values("RateLimit-Policy"))
	}
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

// Two layers that one request exhausts: the fields show the layer that resets later, else the first. The order of the buckets' addresses in
// memory must not matter, so it is tried often.
func TestOfTwoExhaustedLayersTheLongerResetIsSent(t *testing.T) {
	minute, hour := ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("minute"), ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("hour")
	for range 20 {
		for _, order := range [][]ratelimit.Limit{{minute, hour}, {hour, minute}} {
			h := middleware(t, limiterOf(t, new(fakeClock), order...), httplimit.Options{}).Wrap(ok)
			assert.Equal(t, `"hour";r=0;t=3600`, get(h).Header.Get("RateLimit"))
		}
		twins := limiterOf(t, new(fakeClock), minute.Named("first"), minute.Named("second"))
		assert.Equal(t, `"first";r=0;t=60`, get(middleware(t, twins, httplimit.Options{}).Wrap(ok)).Header.Get("RateLimit"))
	}
}
