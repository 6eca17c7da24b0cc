package httplimit_test

import (
	"context"
	"math"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
)

func TestFieldsOfEachAlgorithm(t *testing.T) {
	for _, row := range []struct {
		limit  ratelimit.Limit
		policy string
		first  string // RateLimit of a first request
		second string // and 2.5 s later
	}{
		{ratelimit.TokenBucket(ratelimit.PerSecond(10), 25), `"default";q=25;w=3;weir-refill`, `"default";r=24;t=3`, `"default";r=24;t=3`},
		{ratelimit.TokenBucket(ratelimit.PerSecond(10), 5), `"default";q=5;w=1;weir-refill`, `"default";r=4;t=1`, `"default";r=4;t=1`},
		{ratelimit.LeakyBucket(ratelimit.PerMinute(60), 90), `"default";q=90;w=90;weir-refill`, `"default";r=89;t=90`, `"default";r=89;t=90`},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), `"default";q=100;w=60`, `"default";r=99;t=60`, `"default";r=98;t=58`},
		{ratelimit.FixedWindow(ratelimit.Per(7, 100*time.Millisecond)), `"default";q=7;w=1`, `"default";r=6;t=1`, `"default";r=6;t=1`},
		{ratelimit.SlidingLog(ratelimit.PerHour(3)), `"default";q=3;w=3600;weir-refill`, `"default";r=2;t=3600`, `"default";r=1;t=3600`},
		{ratelimit.SlidingCounter(ratelimit.PerDay(9)), `"default";q=9;w=86400;weir-refill`, `"default";r=8;t=172800`, `"default";r=7;t=172798`},
		{ratelimit.TokenBucket(ratelimit.PerDay(999_983), 999_983).Named("day"), `"day";q=999983;w=86400;weir-refill`, `"day";r=999982;t=86400`, `"day";r=999982;t=86400`},
		{ratelimit.Blocked().Named("banned"), `"banned";q=0`, `"banned";r=0`, `"banned";r=0`},
		{ratelimit.Unlimited(), ``, ``, ``},
	} {
		t.Run(row.limit.String(), func(t *testing.T) {
			clock := new(fakeClock)
			h := middleware(t, limiterOf(t, clock, row.limit), httplimit.Options{}).Wrap(ok)
			resp := get(h)
			assert.Equal(t, row.policy, resp.Header.Get("RateLimit-Policy"))
			assert.Equal(t, row.first, resp.Header.Get("RateLimit"))
			clock.advance(2500 * time.Millisecond)
			assert.Equal(t, row.second, get(h).Header.Get("RateLimit"))
		})
	}
}

func TestRemainingPerWindowInvitesNoMoreThanTheRate(t *testing.T) {
	clock := new(fakeClock)
	h := middleware(t, limiterOf(t, clock, ratelimit.TokenBucket(ratelimit.PerSecond(2), 100)), httplimit.Options{}).Wrap(ok)
	get(h)
	clock.advance(time.Hour)
	assert.Equal(t, `"default";r=99;t=50`, get(h).Header.Get("RateLimit"), "fresh in half a second, but t is not that")
}

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
		{httplimit.DialectXEpoch, // a minute after 12:00:00, at any time
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

func TestEpochResetIsNeverEarlierThanTheTruth(t *testing.T) {
	clock := new(fakeClock)
	h := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(1))),
		httplimit.Options{Dialect: httplimit.DialectXEpoch, Now: clock.wall}).Wrap(ok)
	clock.advance(1)
	assert.Equal(t, "1795262461", get(h).Header.Get("X-RateLimit-Reset"), "a nanosecond past 12:01:00 is past it")
}

func TestSeveralLayersAreSeveralPolicies(t *testing.T) {
	clock := new(fakeClock)
	h := middleware(t, limiterOf(t, clock,
		ratelimit.TokenBucket(ratelimit.PerSecond(1), 2).Named("burst"),
		ratelimit.Unlimited().Named("partners"),
		ratelimit.FixedWindow(ratelimit.PerDay(3)).Named("daily"),
	), httplimit.Options{}).Wrap(ok)
	const policies = `"burst";q=2;w=2;weir-refill, "daily";q=3;w=86400`
	want := func(status int, standing string) {
		t.Helper()
		resp := get(h)
		assert.Equal(t, status, resp.StatusCode)
		assert.Equal(t, []string{policies}, resp.Header.Values("RateLimit-Policy"))
		assert.Equal(t, []string{standing}, resp.Header.Values("RateLimit"))
	}
	want(200, `"burst";r=1;t=2`)
	want(200, `"burst";r=0;t=1`)
	want(429, `"burst";r=0;t=1`)
	clock.advance(time.Hour)
	want(200, `"daily";r=0;t=82800`)
	want(429, `"daily";r=0;t=82800`)
}

func TestMiddlewareInsideMiddlewareAddsToTheLists(t *testing.T) {
	clock := new(fakeClock)
	outer := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(9)).Named("api")), httplimit.Options{})
	inner := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("login")), httplimit.Options{})
	h := outer.Wrap(inner.Wrap(ok))
	resp := get(h)
	assert.Equal(t, []string{`"api";q=9;w=60`, `"login";q=1;w=60`}, resp.Header.Values("RateLimit-Policy"))
	assert.Equal(t, []string{`"api";r=8;t=60`, `"login";r=0;t=60`}, resp.Header.Values("RateLimit"))
	resp = get(h)
	assert.Equal(t, []string{`"api";r=7;t=60`, `"login";r=0;t=60`}, resp.Header.Values("RateLimit"))
	assert.Contains(t, body(t, resp), `"violated-policies":["login"]`)
}

func TestPlanOfAKeyStandsForTheLimitOfItsName(t *testing.T) {
	clock := new(fakeClock)
	perKey := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("key")
	keyed := ratelimit.Must(ratelimit.New(perKey, &ratelimit.Options[string]{Clock: clock, LimitFor: func(key string) ratelimit.Limit {
		return map[string]ratelimit.Limit{
			"gold":  ratelimit.FixedWindow(ratelimit.PerMinute(50)).Named("key"),
			"trial": ratelimit.FixedWindow(ratelimit.PerMinute(2)).Named("trial"),
		}[key]
	}}))
	global := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerSecond(1000)).Named("global"), &ratelimit.Options[string]{Clock: clock}))
	all := ratelimit.Must(ratelimit.All(ratelimit.By(keyed, httplimit.Header("X-Plan")), ratelimit.By(global, everyone)))
	h := middleware(t, all, httplimit.Options{}).Wrap(ok)
	for range 2 { // the second time from the cached values
		for plan, want := range map[string]string{
			"plain": `"key";q=5;w=60, "global";q=1000;w=1`,
			"gold":  `"key";q=50;w=60, "global";q=1000;w=1`,
			"trial": `"trial";q=2;w=60, "global";q=1000;w=1`,
		} {
			r := with("X-Plan: " + plan)
			assert.Equal(t, want, send(h, r).Header.Get("RateLimit-Policy"), plan)
		}
	}

	require.NoError(t, global.SetLimit(ratelimit.FixedWindow(ratelimit.PerMinute(3)).Named("global")))
	gold := with("X-Plan: gold")
	clock.advance(time.Hour)
	assert.Equal(t, `"global";q=3;w=60`, send(h, gold).Header.Get("RateLimit-Policy"), "global has decided")
	require.NoError(t, global.SetLimit(ratelimit.FixedWindow(ratelimit.PerMinute(1000)).Named("global")))
	assert.Equal(t, `"key";q=50;w=60, "global";q=1000;w=60`, send(h, gold).Header.Get("RateLimit-Policy"), "what was kept is forgotten")
}

func TestLimitThatDiffersByKeyIsListedWhenItHasDecided(t *testing.T) {
	ip := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("ip")
	gold := ratelimit.FixedWindow(ratelimit.PerMinute(50)).Named("gold")
	limiter := &listing{stub{limits: []ratelimit.Limit{ip, {}, {}}}}
	h := middleware(t, limiter, httplimit.Options{}).Wrap(ok)
	limiter.decision = ratelimit.Decision{Allowed: true, Limit: ip}
	assert.Equal(t, `"ip";q=5;w=60`, get(h).Header.Get("RateLimit-Policy"))
	limiter.decision.Limit = gold
	assert.Equal(t, `"ip";q=5;w=60, "gold";q=50;w=60`, get(h).Header.Get("RateLimit-Policy"))
}

func TestPoliciesFollowSetLimit(t *testing.T) {
	clock := new(fakeClock)
	keyed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(5)), &ratelimit.Options[string]{Clock: clock}))
	h := middleware(t, ratelimit.Must(ratelimit.All(ratelimit.By(keyed, everyone))), httplimit.Options{}).Wrap(ok)
	assert.Equal(t, `"default";q=5;w=60`, get(h).Header.Get("RateLimit-Policy"))
	require.NoError(t, keyed.SetLimit(ratelimit.FixedWindow(ratelimit.PerMinute(8)).Named("more")))
	assert.Equal(t, `"more";q=8;w=60`, get(h).Header.Get("RateLimit-Policy"))
}

func TestMorePlansThanAreKeptAreWrittenAllTheSame(t *testing.T) {
	limiter := new(stub)
	h := middleware(t, limiter, httplimit.Options{}).Wrap(ok)
	for range 2 {
		for units := range 300 {
			limiter.decision = ratelimit.Decision{Allowed: true, Limit: ratelimit.FixedWindow(ratelimit.PerSecond(units + 1))}
			assert.Equal(t, `"default";q=`+itoa(units+1)+`;w=1`, get(h).Header.Get("RateLimit-Policy"))
		}
	}
}

func TestLimiterThatListsNothingIsShownByTheDecisionsLimit(t *testing.T) {
	keyed := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("five"),
		&ratelimit.Options[string]{Clock: new(fakeClock)}))
	resp := get(middleware(t, ratelimit.Map(keyed, everyone), httplimit.Options{}).Wrap(ok))
	assert.Equal(t, `"five";q=5;w=60`, resp.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"five";r=4;t=60`, resp.Header.Get("RateLimit"))
}

func TestNamesAreEscapedAndFiguresClamped(t *testing.T) {
	limit := ratelimit.Limit{Name: `say "a\b", c`, Algorithm: ratelimit.AlgorithmFixedWindow,
		Rate: ratelimit.Rate{Units: math.MaxInt, Per: math.MaxInt64}}
	limiter := &listing{stub{limits: []ratelimit.Limit{limit}, decision: ratelimit.Decision{Limit: limit, Remaining: math.MaxInt, RetryAfter: math.MaxInt64}}}
	resp := get(middleware(t, limiter, httplimit.Options{}).Wrap(ok))
	most := strconv.FormatInt(min(math.MaxInt, 999_999_999_999_999), 10)
	assert.Equal(t, `"say \"a\\b\", c";q=`+most+`;w=9223372037`, resp.Header.Get("RateLimit-Policy"))
	assert.Equal(t, `"say \"a\\b\", c";r=`+most+`;t=9223372037`, resp.Header.Get("RateLimit"))
	assert.Equal(t, "9223372037", resp.Header.Get("Retry-After"))
	assert.Contains(t, body(t, resp), `"violated-policies":["say \"a\\b\", c"]`)
}

func TestFiguresBelowZeroAreZero(t *testing.T) {
	limit := ratelimit.Limit{Algorithm: ratelimit.AlgorithmTokenBucket, Rate: ratelimit.Rate{Units: -1, Per: -1}, Burst: -1}
	limiter := &stub{decision: ratelimit.Decision{Allowed: true, Limit: limit, Remaining: -5, ResetAfter: -time.Hour}}
	resp := get(middleware(t, limiter, httplimit.Options{}).Wrap(ok))
	assert.Equal(t, `"default";r=0;t=999999999999999`, resp.Header.Get("RateLimit"), "no such limit regains")
	resp = get(middleware(t, limiter, httplimit.Options{Dialect: httplimit.DialectDraft06}).Wrap(ok))
	assert.Equal(t, "0", resp.Header.Get("RateLimit-Remaining"))
	assert.Equal(t, "0", resp.Header.Get("RateLimit-Reset"))
}

func TestNameThatNoFieldCarriesIsNotSent(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(1)).Named("a\r\nSet-Cookie: x=y")
	resp := get(middleware(t, &stub{decision: ratelimit.Decision{Limit: limit, RetryAfter: time.Second}}, httplimit.Options{}).Wrap(ok))
	assert.Equal(t, http.StatusTooManyRequests, resp.StatusCode)
	assert.Empty(t, resp.Header.Get("RateLimit-Policy"))
	assert.Empty(t, resp.Header.Get("RateLimit"))
	assert.NotContains(t, body(t, resp), "violated-policies")
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

// The remaining budget is in units of the caller's cost, and a layer with its own cost has none.
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

// Another engine may deny without a RetryAfter.
func TestRetryAfterIsNeverBeforeTheEndOfTheEffectiveWindow(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("five")
	resp := get(middleware(t, &stub{decision: ratelimit.Decision{Limit: limit}}, httplimit.Options{}).Wrap(ok))
	assert.Equal(t, "1", resp.Header.Get("Retry-After"))
	assert.Equal(t, `"five";r=0;t=1`, resp.Header.Get("RateLimit"))
}

// A sliding counter counts the window before as well: all its quota spent at once is there
// again after two windows, and little of it after one.
// An answer that leaves nothing names the instant of the next unit, in every dialect and for every algorithm: not the one at which the
// budget is whole, for which a client would wait in silence.
func TestWithNothingLeftTheResetIsTheNextUnit(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerMinute(6), 9),
		ratelimit.TokenBucket(ratelimit.Per(7, 61*time.Second), 3),
		ratelimit.FixedWindow(ratelimit.PerMinute(6)),
		ratelimit.SlidingLog(ratelimit.PerMinute(6)),
		ratelimit.SlidingCounter(ratelimit.PerMinute(6)),
	} {
		for dialect, field := range map[httplimit.Dialect]string{
			httplimit.DialectDraft11: "RateLimit", httplimit.DialectDraft06: "RateLimit-Reset",
			httplimit.DialectXDelta: "X-RateLimit-Reset", httplimit.DialectXEpoch: "X-RateLimit-Reset",
		} {
			rnd := rand.New(rand.NewPCG(uint64(dialect), 1))
			clock := new(fakeClock)
			l := limiterOf(t, clock, limit)
			epoch := time.Unix(1_800_000_000, 0)
			h := middleware(t, l, httplimit.Options{Dialect: dialect, Now: func() time.Time { return epoch.Add(clock.Now()) }}).Wrap(ok)
			seen := 0
			for range 60 {
				clock.advance(time.Duration(rnd.IntN(11)) * time.Second)
				resp := get(h)
				d, err := l.Peek(t.Context(), nil, 1)
				require.NoError(t, err)
				if resp.StatusCode != 200 || d.Allowed {
					continue
				}
				seen++
				want := int64((d.RetryAfter + time.Second - 1) / time.Second)
				text := resp.Header.Get(field)
				text = text[strings.LastIndexByte(text, '=')+1:]
				got, err := strconv.ParseInt(text, 10, 64)
				require.NoError(t, err)
				if dialect == httplimit.DialectXEpoch {
					got -= epoch.Add(clock.Now()).Unix()
				}
				require.Equal(t, want, got, "%v, dialect %v", limit, dialect)
			}
			require.Greater(t, seen, 3, limit)
		}
	}
}

// Only budgets that come back unit by unit have the parameter that reports this to the library's clients.
func TestPoliciesReportBudgetsThatRefill(t *testing.T) {
	for limit, refills := range map[ratelimit.Limit]bool{
		ratelimit.TokenBucket(ratelimit.PerMinute(6), 9):         true,
		ratelimit.LeakyBucket(ratelimit.PerMinute(6), 9):         true,
		ratelimit.SlidingLog(ratelimit.PerMinute(6)):             true,
		ratelimit.SlidingCounter(ratelimit.PerMinute(6)):         true,
		ratelimit.FixedWindow(ratelimit.PerMinute(6)):            false,
		ratelimit.Calendar(6, ratelimit.Month("UTC", 1)):         false,
		ratelimit.FixedWindow(ratelimit.PerMinute(6)).Named("a"): false,
	} {
		policy := get(middleware(t, limiterOf(t, nil, limit), httplimit.Options{}).Wrap(ok)).Header.Get("RateLimit-Policy")
		assert.Equal(t, refills, strings.HasSuffix(policy, ";weir-refill"), policy)
	}
}

func TestSlidingCounterIsNotShownAsFreshTooEarly(t *testing.T) {
	clock := new(fakeClock)
	limiter := limiterOf(t, clock, ratelimit.SlidingCounter(ratelimit.PerMinute(10)))
	draft := middleware(t, limiter, httplimit.Options{Cost: func(*http.Request) int { return 10 }}).Wrap(ok)
	assert.Equal(t, `"default";r=0;t=66`, get(draft).Header.Get("RateLimit"), "the next unit, in the next window")
	clock.advance(60 * time.Second)
	d, err := limiter.Peek(context.Background(), nil, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "so 60 would have been wrong")
	clock.advance(60 * time.Second)
	for dialect, field := range map[httplimit.Dialect]string{httplimit.DialectDraft06: "RateLimit-Reset", httplimit.DialectXDelta: "X-RateLimit-Reset"} {
		limiter := limiterOf(t, clock, ratelimit.SlidingCounter(ratelimit.PerMinute(10)))
		h := middleware(t, limiter, httplimit.Options{Dialect: dialect}).Wrap(ok)
		assert.Equal(t, "120", get(h).Header.Get(field))
		clock.advance(90 * time.Second)
		assert.Equal(t, "90", get(h).Header.Get(field))
	}
}

// Late in the second window much is left and the key is soon fresh: as t, that short time
// would invite a burst.
func TestSlidingCountersEffectiveWindowIsNotBelowItsWindow(t *testing.T) {
	clock := new(fakeClock)
	h := middleware(t, limiterOf(t, clock, ratelimit.SlidingCounter(ratelimit.PerMinute(10))),
		httplimit.Options{Cost: func(r *http.Request) int { return len(r.URL.Path) - 1 }}).Wrap(ok)
	send(h, httptest.NewRequest("GET", "/a", nil))
	clock.advance(115 * time.Second)
	assert.Equal(t, `"default";r=9;t=60`, send(h, with()).Header.Get("RateLimit"))
}

// In a stack ResetAfter is the longest of all layers.
func TestResetOfAnotherLayerIsNotThisLimits(t *testing.T) {
	minute := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("minute")
	d := ratelimit.Decision{Allowed: true, Limit: minute, Remaining: 1, ResetAfter: 24 * time.Hour}
	assert.Equal(t, `"minute";r=1;t=60`, get(middleware(t, &stub{decision: d}, httplimit.Options{}).Wrap(ok)).Header.Get("RateLimit"))
	legacy := httplimit.Options{Dialect: httplimit.DialectXDelta}
	assert.Equal(t, "60", get(middleware(t, &stub{decision: d}, legacy).Wrap(ok)).Header.Get("X-RateLimit-Reset"))
	d.Limit = ratelimit.SlidingCounter(ratelimit.PerMinute(5))
	assert.Equal(t, "120", get(middleware(t, &stub{decision: d}, legacy).Wrap(ok)).Header.Get("X-RateLimit-Reset"))
}

// Another engine may leave a RetryAfter in an answer that allows.
func TestRetryAfterOfAnAllowedRequestIsNotItsReset(t *testing.T) {
	d := ratelimit.Decision{Allowed: true, Limit: ratelimit.FixedWindow(ratelimit.PerMinute(5)), ResetAfter: time.Second, RetryAfter: time.Hour}
	resp := get(middleware(t, &stub{decision: d}, httplimit.Options{Dialect: httplimit.DialectXDelta}).Wrap(ok))
	assert.Equal(t, "1", resp.Header.Get("X-RateLimit-Reset"))
}

// Limits of another engine, that New of this module does not take.
func TestWindowsOfOddLimitsAreAtLeastASecondAndDoNotOverflow(t *testing.T) {
	for _, row := range []struct {
		limit         ratelimit.Limit
		policy, reset string
	}{
		{ratelimit.Limit{Algorithm: ratelimit.AlgorithmFixedWindow, Rate: ratelimit.Rate{Units: 5}}, `"default";q=5;w=1`, "1"},
		{ratelimit.Limit{Algorithm: ratelimit.AlgorithmTokenBucket, Rate: ratelimit.PerSecond(1)}, `"default";q=0;w=1;weir-refill`, "1"},
		{ratelimit.Limit{Algorithm: ratelimit.AlgorithmTokenBucket, Burst: 1}, `"default";q=1;w=999999999999999;weir-refill`, "3600"},
		{ratelimit.Limit{Algorithm: ratelimit.AlgorithmSlidingCounter, Rate: ratelimit.Rate{Units: 1, Per: math.MaxInt64}}, `"default";q=1;w=9223372037;weir-refill`, "3600"},
	} {
		d := ratelimit.Decision{Allowed: true, Limit: row.limit, ResetAfter: time.Hour}
		assert.Equal(t, row.policy, get(middleware(t, &stub{decision: d}, httplimit.Options{}).Wrap(ok)).Header.Get("RateLimit-Policy"))
		resp := get(middleware(t, &stub{decision: d}, httplimit.Options{Dialect: httplimit.DialectDraft06}).Wrap(ok))
		assert.Equal(t, row.reset, resp.Header.Get("RateLimit-Reset"))
	}
}

func TestPlanStandsForALimitWhoseNameDiffersInCase(t *testing.T) {
	limiter := &listing{stub{limits: []ratelimit.Limit{ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("key")}}}
	limiter.decision = ratelimit.Decision{Allowed: true, Limit: ratelimit.FixedWindow(ratelimit.PerMinute(50)).Named("Key")}
	assert.Equal(t, `"Key";q=50;w=60`, get(middleware(t, limiter, httplimit.Options{}).Wrap(ok)).Header.Get("RateLimit-Policy"))
}

func TestLimitsThatCannotBeListedLeaveTheListAsItWas(t *testing.T) {
	a, b := ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("a"), ratelimit.FixedWindow(ratelimit.PerMinute(6)).Named("b")
	limiter := &listing{stub{limits: []ratelimit.Limit{a, b}, decision: ratelimit.Decision{Allowed: true, Limit: b}}}
	h := middleware(t, limiter, httplimit.Options{}).Wrap(ok)
	get(h)
	limiter.limits = []ratelimit.Limit{a, b.Named("A")}
	limiter.decision.Limit = b.Named("A")
	assert.Equal(t, `"A";q=6;w=60, "b";q=6;w=60`, get(h).Header.Get("RateLimit-Policy"), "in place of the limit of that name, once")
}

func TestFieldsContainUnitsOfQuotas(t *testing.T) {
	units := func(l ratelimit.Limit) string {
		return map[string]string{"bytes": "content-bytes", "tokens": `to"kens`}[l.Name]
	}
	clock := new(fakeClock)
	h := middleware(t, limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("requests"),
		ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("bytes"), ratelimit.FixedWindow(ratelimit.PerMinute(5)).Named("tokens")),
		httplimit.Options{QuotaUnit: units}).Wrap(ok)
	assert.Equal(t, `"requests";q=5;w=60, "bytes";q=5;w=60;qu="content-bytes", "tokens";q=5;w=60;qu="to\"kens"`,
		get(h).Header.Get("RateLimit-Policy"))

	_, err := httplimit.New(limiterOf(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(5))),
		&httplimit.Options{QuotaUnit: func(ratelimit.Limit) string { return "é" }})
	assert.ErrorContains(t, err, "Options.QuotaUnit")
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

// A limit for each of very many plans costs as much as a limit for all.
func TestManyPlansAreWrittenOnce(t *testing.T) {
	const plans = 10_000
	limiter := &listing{stub{limits: []ratelimit.Limit{{}}}}
	m := middleware(t, limiter, httplimit.Options{})
	w, r := &discard{http.Header{}}, httptest.NewRequest("GET", "/", nil)
	h := m.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	plan := 0
	serve := func() {
		plan = plan%plans + 1
		limiter.decision = ratelimit.Decision{Allowed: true, Limit: ratelimit.FixedWindow(ratelimit.PerSecond(plan))}
		limiter.costs = limiter.costs[:0]
		clear(w.header)
		h.ServeHTTP(w, r)
		if w.header["Ratelimit-Policy"][0] != `"default";q=`+itoa(plan)+`;w=1` {
			t.Fatal(w.header)
		}
	}
	for range plans {
		serve()
	}
	assert.LessOrEqual(t, testing.AllocsPerRun(plans, serve), 6.0, "nothing is written anew: the test itself makes 3")
}

func TestPlansBeyondTheCachedOnesAreWrittenAllTheSame(t *testing.T) {
	testsize.Sequential(t)
	limiter, w, r := new(stub), &discard{http.Header{}}, httptest.NewRequest("GET", "/", nil)
	h := middleware(t, limiter, httplimit.Options{}).Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	for i := range 60_000 {
		plan := i%40_000 + 1
		limiter.decision = ratelimit.Decision{Allowed: true, Limit: ratelimit.FixedWindow(ratelimit.PerSecond(plan))}
		limiter.costs = limiter.costs[:0]
		clear(w.header)
		h.ServeHTTP(w, r)
		if w.header["Ratelimit-Policy"][0] != `"default";q=`+itoa(plan)+`;w=1` {
			t.Fatal(w.header)
		}
	}
}

// discard is a writer that costs nothing itself.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(b []byte) (int, error) { return len(b), nil }

// The name in RateLimit is the name of the nearest quota, so it changes when another quota is nearer; the list of policies does not change.
// A chain writes the same fields as a stack of the same limits, as long as it does not deny.
func TestStacksAndChainsShowTheNearestQuotaAlike(t *testing.T) {
	limits := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("burst"), ratelimit.FixedWindow(ratelimit.PerMinute(12)).Named("minute"),
		ratelimit.SlidingLog(ratelimit.Rate{Units: 7, Per: 10 * time.Second}).Named("ten")}
	clock := new(fakeClock)
	var chained []ratelimit.Reserver[*http.Request]
	for _, limit := range limits {
		l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
		chained = append(chained, ratelimit.Map(l, everyone))
	}
	byChain := middleware(t, ratelimit.Must(chain.New(chained...)), httplimit.Options{}).Wrap(ok)
	byStack := middleware(t, limiterOf(t, clock, limits...), httplimit.Options{}).Wrap(ok)
	names, denied := map[string]int{}, 0
	random := rand.New(rand.NewPCG(5, 25))
	for range 2000 {
		clock.advance(time.Duration(random.Int64N(int64(4 * time.Second))))
		want, got := get(byStack), get(byChain)
		require.Equal(t, want.StatusCode, got.StatusCode)
		require.Equal(t, []string{`"burst";q=5;w=5;weir-refill, "minute";q=12;w=60, "ten";q=7;w=10;weir-refill`}, got.Header.Values("RateLimit-Policy"))
		require.Len(t, got.Header.Values("RateLimit"), 1)
		if want.StatusCode == http.StatusOK {
			require.Equal(t, want.Header, got.Header)
			name, _, _ := strings.Cut(got.Header.Get("RateLimit"), ";")
			names[name]++
		} else {
			denied++
		}
	}
	assert.Len(t, names, 3, "each is the nearest at times")
	assert.Positive(t, denied)
}

// No field has a word for a month: w is the length of the present window, which the next one may
// not have. A bubble's time begins on January 1, 2000.
func TestAPolicysWindowIsThePresentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		limit := ratelimit.Calendar(2, ratelimit.Month("UTC", 1)).Named("quota")
		l := ratelimit.Must(ratelimit.New[string](limit, nil))
		m := ratelimit.Must(httplimit.New(ratelimit.Map(l, func(*http.Request) (string, error) { return "k", nil }), nil))
		handler := m.Wrap(http.NotFoundHandler())
		header := func() http.Header {
			w := httptest.NewRecorder()
			handler.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
			return w.Result().Header
		}
		const day = 24 * time.Hour
		time.Sleep(20 * day)
		h := header()
		assert.Equal(t, `"quota";q=2;w=2678400`, h.Get("RateLimit-Policy"), "31 days")
		assert.Equal(t, `"quota";r=1;t=950400`, h.Get("RateLimit"), "11 days are left")
		header()
		h = header()
		assert.Equal(t, "950400", h.Get("Retry-After"))
		time.Sleep(11 * day)
		h = header()
		assert.Equal(t, `"quota";q=2;w=2505600`, h.Get("RateLimit-Policy"), "29 days")
		assert.Equal(t, `"quota";r=1;t=2505600`, h.Get("RateLimit"))
	})
}
