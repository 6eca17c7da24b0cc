package limitfields_test

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/internal/limitfields"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// listing is a limiter that describes these limits, and decides nothing.
type listing struct {
	ratelimit.Limiter[string]
	limits []ratelimit.Limit
}

func (l *listing) Describe() ratelimit.Description { return ratelimit.Description{Limits: l.limits} }

// viewsOf returns a limiter's views. Its limits' names must differ.
func viewsOf(t *testing.T, limiter any) *limitfields.Views {
	t.Helper()
	v := new(limitfields.Views)
	require.NoError(t, v.Init(limiter, limitfields.Options{Package: "test", Named: true}))
	return v
}

// stack returns a limiter with one layer for each limit, all keyed alike.
func stack(clock ratelimit.Clock, limits ...ratelimit.Limit) *ratelimit.Layered[string] {
	var layers []ratelimit.Layer[string]
	for _, limit := range limits {
		l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock}))
		layers = append(layers, ratelimit.By(l, func(string) (string, error) { return "all", nil }))
	}
	return ratelimit.Must(ratelimit.All(layers...))
}

// policies returns the policies for a decision by a limit.
func policies(t *testing.T, v *limitfields.Views, limit ratelimit.Limit) string {
	t.Helper()
	p, _, _ := v.Fields(t.Context(), &ratelimit.Decision{Allowed: true, Limit: limit}, false)
	return p
}

// take returns the fields for a request with cost 1, and its decision.
func take(t *testing.T, v *limitfields.Views, l ratelimit.Limiter[string]) (policies, standing string, d ratelimit.Decision) {
	t.Helper()
	d, err := l.Take(t.Context(), "", 1)
	require.True(t, err == nil || errors.Is(err, ratelimit.ErrExceedsLimit), err)
	policies, standing, _ = v.Fields(t.Context(), &d, err != nil)
	return policies, standing, d
}

func perMinute(n int, name string) ratelimit.Limit {
	return ratelimit.FixedWindow(ratelimit.PerMinute(n)).Named(name)
}

func TestFieldsOfEachAlgorithm(t *testing.T) {
	for _, row := range []struct {
		limit  ratelimit.Limit
		policy string
		first  string // RateLimit for the first request
		second string // the same 2.5 s later
	}{
		{ratelimit.TokenBucket(ratelimit.PerSecond(10), 25), `"default";q=25;w=3;weir-refill`, `"default";r=24;t=3`, `"default";r=24;t=3`},
		{ratelimit.TokenBucket(ratelimit.PerSecond(10), 5), `"default";q=5;w=1;weir-refill`, `"default";r=4;t=1`, `"default";r=4;t=1`},
		// The key is fresh in half a second. Its reset is still in 50 s, the time to regain a whole burst.
		{ratelimit.TokenBucket(ratelimit.PerSecond(2), 100), `"default";q=100;w=50;weir-refill`, `"default";r=99;t=50`, `"default";r=99;t=50`},
		{ratelimit.LeakyBucket(ratelimit.PerMinute(60), 90), `"default";q=90;w=90;weir-refill`, `"default";r=89;t=90`, `"default";r=89;t=90`},
		{ratelimit.FixedWindow(ratelimit.PerMinute(100)), `"default";q=100;w=60`, `"default";r=99;t=60`, `"default";r=98;t=58`},
		{ratelimit.FixedWindow(ratelimit.Per(7, 100*time.Millisecond)), `"default";q=7;w=1`, `"default";r=6;t=1`, `"default";r=6;t=1`},
		{ratelimit.SlidingLog(ratelimit.PerHour(3)), `"default";q=3;w=3600;weir-refill`, `"default";r=2;t=3600`, `"default";r=1;t=3600`},
		{ratelimit.SlidingCounter(ratelimit.PerDay(9)), `"default";q=9;w=86400;weir-refill`, `"default";r=8;t=172800`, `"default";r=7;t=172798`},
		{ratelimit.TokenBucket(ratelimit.PerDay(999_983), 999_983).Named("day"), `"day";q=999983;w=86400;weir-refill`, `"day";r=999982;t=86400`, `"day";r=999982;t=86400`},
		{ratelimit.Blocked().Named("banned"), `"banned";q=0`, `"banned";r=0`, `"banned";r=0`},
		{ratelimit.Unlimited(), ``, ``, ``},
	} {
		clock := new(ratelimittest.Clock)
		l := stack(clock, row.limit)
		v := viewsOf(t, l)
		policy, standing, _ := take(t, v, l)
		assert.Equal(t, row.policy, policy)
		assert.Equal(t, row.first, standing, row.policy)
		clock.Advance(2500 * time.Millisecond)
		_, standing, _ = take(t, v, l)
		assert.Equal(t, row.second, standing, row.policy)
	}
}

// The rows are decisions, and their items in RateLimit.
func TestTheStandingOfADecision(t *testing.T) {
	minute, counter := perMinute(5, ""), ratelimit.SlidingCounter(ratelimit.PerMinute(10))
	huge := ratelimit.Limit{Algorithm: ratelimit.AlgorithmFixedWindow, Rate: ratelimit.Rate{Units: math.MaxInt, Per: math.MaxInt64}}
	wrong := ratelimit.Limit{Algorithm: ratelimit.AlgorithmTokenBucket, Rate: ratelimit.Rate{Units: -1, Per: -1}, Burst: -1}
	most := strconv.FormatInt(min(math.MaxInt, limitfields.MaxInteger), 10)
	for name, row := range map[string]struct {
		decision ratelimit.Decision
		exceeds  bool
		want     string
	}{
		"a reset of another layer, which is later": {ratelimit.Decision{Allowed: true, Limit: minute, Remaining: 1, ResetAfter: 24 * time.Hour}, false, `"default";r=1;t=60`},
		"a denial":                            {ratelimit.Decision{Limit: minute, RetryAfter: 1500 * time.Millisecond}, false, `"default";r=0;t=2`},
		"a denial without a time":             {ratelimit.Decision{Limit: minute}, false, `"default";r=0;t=1`},
		"nothing left":                        {ratelimit.Decision{Allowed: true, Limit: minute, NextAfter: 7 * time.Second, ResetAfter: time.Minute}, false, `"default";r=0;t=7`},
		"a counter late in its second window": {ratelimit.Decision{Allowed: true, Limit: counter, Remaining: 9, ResetAfter: 5 * time.Second}, false, `"default";r=9;t=60`},
		"a counter, and another layer":        {ratelimit.Decision{Allowed: true, Limit: counter, Remaining: 9, ResetAfter: time.Hour}, false, `"default";r=9;t=120`},
		"more than fits":                      {ratelimit.Decision{Limit: huge, Remaining: math.MaxInt, RetryAfter: math.MaxInt64}, false, `"default";r=` + most + `;t=9223372037`},
		"less than nothing":                   {ratelimit.Decision{Allowed: true, Limit: wrong, Remaining: -5, ResetAfter: -time.Hour}, false, `"default";r=0;t=999999999999999`}, // no such limit regains
		"a cost above the limit":              {ratelimit.Decision{Limit: minute}, true, ``},
		"any cost under a limit of zero":      {ratelimit.Decision{Limit: ratelimit.Blocked()}, true, `"default";r=0`},
		"a layer with a cost of its own":      {ratelimit.Decision{Allowed: true, Limit: minute, Remaining: 6}, false, ``},
	} {
		_, standing, _ := viewsOf(t, nil).Fields(t.Context(), &row.decision, row.exceeds)
		assert.Equal(t, row.want, standing, name)
	}
}

// Another engine may have limits that New refuses. Some names need an escape or cannot be sent.
func TestPoliciesOfOddLimits(t *testing.T) {
	for want, limit := range map[string]ratelimit.Limit{
		`"default";q=5;w=1`:                           {Algorithm: ratelimit.AlgorithmFixedWindow, Rate: ratelimit.Rate{Units: 5}},
		`"default";q=0;w=1;weir-refill`:               {Algorithm: ratelimit.AlgorithmTokenBucket, Rate: ratelimit.PerSecond(1)},
		`"default";q=1;w=999999999999999;weir-refill`: {Algorithm: ratelimit.AlgorithmTokenBucket, Burst: 1},
		`"default";q=1;w=9223372037;weir-refill`:      {Algorithm: ratelimit.AlgorithmSlidingCounter, Rate: ratelimit.Rate{Units: 1, Per: math.MaxInt64}},
		`"say \"a\\b\", c";q=1;w=60`:                  perMinute(1, `say "a\b", c`),
		``:                                            perMinute(1, "a\r\nSet-Cookie: x=y"),
		`"default";q=2147483647;w=60`:                 perMinute(math.MaxInt32, ""),
		`"default";q=3;w=1;weir-refill`:               ratelimit.TokenBucket(ratelimit.PerSecond(7), 3),
	} {
		assert.Equal(t, want, policies(t, viewsOf(t, nil), limit))
	}
}

func TestSeveralLayersAreSeveralPolicies(t *testing.T) {
	clock := new(ratelimittest.Clock)
	l := stack(clock, ratelimit.TokenBucket(ratelimit.PerSecond(1), 2).Named("burst"),
		ratelimit.Unlimited().Named("partners"), ratelimit.FixedWindow(ratelimit.PerDay(3)).Named("daily"))
	v := viewsOf(t, l)
	for _, row := range []struct {
		wait     time.Duration
		allowed  bool
		standing string
	}{
		{0, true, `"burst";r=1;t=2`},
		{0, true, `"burst";r=0;t=1`},
		{0, false, `"burst";r=0;t=1`},
		{time.Hour, true, `"daily";r=0;t=82800`},
		{0, false, `"daily";r=0;t=82800`},
	} {
		clock.Advance(row.wait)
		policy, standing, d := take(t, v, l)
		assert.Equal(t, row.allowed, d.Allowed)
		assert.Equal(t, `"burst";q=2;w=2;weir-refill, "daily";q=3;w=86400`, policy)
		assert.Equal(t, row.standing, standing)
	}
}

// A limit outside the list takes the place of the limit with its name, or of one that differs from key to key.
func TestTheLimitOfAKeyIsListed(t *testing.T) {
	ip, gold := perMinute(5, "ip"), perMinute(50, "gold")
	for name, row := range map[string]struct {
		limits []ratelimit.Limit
		limit  ratelimit.Limit // the deciding limit
		want   string
	}{
		"a limit of the list":             {[]ratelimit.Limit{ip, {}, {}}, ip, `"ip";q=5;w=60`},
		"of no name in the list":          {[]ratelimit.Limit{ip, {}, {}}, gold, `"ip";q=5;w=60, "gold";q=50;w=60`},
		"of a name in the list":           {[]ratelimit.Limit{ip, gold}, perMinute(9, "ip"), `"ip";q=9;w=60, "gold";q=50;w=60`},
		"of that name in another case":    {[]ratelimit.Limit{gold, ip}, perMinute(9, "IP"), `"gold";q=50;w=60, "IP";q=9;w=60`},
		"of a limiter that lists nothing": {nil, gold, `"gold";q=50;w=60`},
		"of a limiter with other limits":  {[]ratelimit.Limit{ip}, gold, `"gold";q=50;w=60`},
	} {
		v := viewsOf(t, &listing{limits: row.limits})
		for range 2 { // the second time from the cached values
			assert.Equal(t, row.want, policies(t, v, row.limit), name)
		}
	}
}

func TestPoliciesFollowSetLimit(t *testing.T) {
	a, b := perMinute(5, "a"), perMinute(6, "b")
	l := &listing{limits: []ratelimit.Limit{a, b}}
	v, plan := viewsOf(t, l), perMinute(50, "a")
	assert.Equal(t, `"a";q=50;w=60, "b";q=6;w=60`, policies(t, v, plan))
	l.limits = []ratelimit.Limit{a, perMinute(7, "b")}
	assert.Equal(t, `"a";q=50;w=60, "b";q=6;w=60`, policies(t, v, plan), "no decision has shown the change")
	assert.Equal(t, `"a";q=5;w=60, "b";q=7;w=60`, policies(t, v, l.limits[1]))
	assert.Equal(t, `"a";q=50;w=60, "b";q=7;w=60`, policies(t, v, plan), "what was cached is forgotten")
	l.limits = []ratelimit.Limit{a, b.Named("A")} // these cannot be listed together
	assert.Equal(t, `"A";q=6;w=60, "b";q=7;w=60`, policies(t, v, l.limits[1]), "in place of the limit of that name, once")
}

// A limit for each of very many plans costs as much as one limit for all.
func TestManyPlansAreWrittenOnce(t *testing.T) {
	const plans = 10_000
	v, plan := viewsOf(t, &listing{limits: []ratelimit.Limit{{}}}), 0
	next := func() {
		plan = plan%plans + 1
		limit := ratelimit.FixedWindow(ratelimit.PerSecond(plan))
		require.Equal(t, plan, v.Of(&limit).Limit.Rate.Units)
	}
	for range plans {
		next()
	}
	before := testing.AllocsPerRun(plans, func() { require.Equal(t, plan, plan) })
	assert.LessOrEqual(t, testing.AllocsPerRun(plans, next)-before, 1.0, "nothing is written anew")
}

func TestPlansBeyondTheCachedOnesAreWrittenAllTheSame(t *testing.T) {
	testsize.Sequential(t)
	v := viewsOf(t, nil)
	for i := range 60_000 {
		plan := i%40_000 + 1
		require.Equal(t, `"default";q=`+strconv.Itoa(plan)+`;w=1`, policies(t, v, ratelimit.FixedWindow(ratelimit.PerSecond(plan))))
	}
}

// In one response, a name stands for one policy. If an outer interceptor has used a name, an inner one adds a number to it.
func TestNamesOfNestedLimitsAreDistinct(t *testing.T) {
	for name, row := range map[string]struct {
		names, want []string // the outermost first
	}{
		"without names":               {[]string{"", "", ""}, []string{"default", "default-2", "default-3"}},
		"of one name and one other":   {[]string{"ip", "a", "ip"}, []string{"ip", "a", "ip-2"}},
		"in another case":             {[]string{"ip", "IP"}, []string{"ip", "IP-2"}},
		"whose number is taken":       {[]string{"ip-2", "ip", "ip"}, []string{"ip-2", "ip", "ip-3"}},
		"whose number comes too late": {[]string{"ip", "ip", "ip-2"}, []string{"ip", "ip-2", "ip-2-2"}},
	} {
		ctx := t.Context()
		for i, text := range row.names {
			limit := perMinute(9-i, text)
			policy, standing, inner := viewsOf(t, &listing{limits: []ratelimit.Limit{limit}}).Fields(ctx, &ratelimit.Decision{Allowed: true, Limit: limit, Remaining: i}, false)
			assert.Equal(t, `"`+row.want[i]+`";q=`+strconv.Itoa(9-i)+`;w=60`, policy, name)
			assert.Equal(t, `"`+row.want[i]+`";r=`+strconv.Itoa(i)+`;t=60`, standing, name)
			ctx = inner
		}
	}
}

// One limiter is used alone, and inside others.
func TestNamesAreDistinctInsideAnyMiddleware(t *testing.T) {
	limit := perMinute(100, "")
	inner, d := viewsOf(t, &listing{limits: []ratelimit.Limit{limit}}), ratelimit.Decision{Allowed: true, Limit: limit}
	around := func(name string) context.Context {
		outer := limit.Named(name)
		_, _, ctx := viewsOf(t, &listing{limits: []ratelimit.Limit{outer}}).Fields(t.Context(), &ratelimit.Decision{Limit: outer}, false)
		return ctx
	}
	a, b := around("a"), around("")
	for range 2 {
		for want, ctx := range map[string]context.Context{`"default";q=100;w=60`: a, `"default-2";q=100;w=60`: b} {
			policy, _, _ := inner.Fields(ctx, &d, false)
			assert.Equal(t, want, policy)
		}
		assert.Equal(t, `"default";q=100;w=60`, policies(t, inner, limit))
	}
}

func TestInitRefusesNamesAndUnitsThatNoFieldCarries(t *testing.T) {
	for want, names := range map[string][]string{
		`test: limit name "a\r\nSet-Cookie: x" has '\r' at position 1`: {"a\r\nSet-Cookie: x"},
		`has 'ö' at position 2`: {"größe"},
		`policy name "Burst"`:   {"burst", "Burst"},
		`policy name "default"`: {"", ""},
	} {
		var limits []ratelimit.Limit
		for i, name := range names {
			limits = append(limits, perMinute(i+1, name))
		}
		l := &listing{limits: limits}
		assert.ErrorContains(t, new(limitfields.Views).Init(l, limitfields.Options{Package: "test", Named: true}), want)
		assert.NoError(t, new(limitfields.Views).Init(l, limitfields.Options{Package: "test"}), "where no name is sent")
	}
	units := func(ratelimit.Limit) string { return "é" }
	err := new(limitfields.Views).Init(&listing{limits: []ratelimit.Limit{perMinute(1, "a")}}, limitfields.Options{Package: "test", Named: true, Unit: units})
	assert.ErrorContains(t, err, `test: Options.QuotaUnit of limit "a"`)
}

func TestPoliciesContainUnitsOfQuotas(t *testing.T) {
	units := map[string]string{"bytes": "content-bytes", "tokens": `to"kens`, "plan": "é"}
	requests := perMinute(5, "requests")
	v := new(limitfields.Views)
	require.NoError(t, v.Init(&listing{limits: []ratelimit.Limit{requests, perMinute(5, "bytes"), perMinute(5, "tokens")}}, limitfields.Options{
		Named: true, Unit: func(l ratelimit.Limit) string { return units[l.Name] },
	}))
	assert.Equal(t, `"requests";q=5;w=60, "bytes";q=5;w=60;qu="content-bytes", "tokens";q=5;w=60;qu="to\"kens"`, policies(t, v, requests))
	assert.Equal(t, `"plan";q=1;w=60`, policies(t, v, perMinute(1, "plan")), "a unit that cannot be sent")
}

// RateLimit names the nearest quota, so the name changes when another quota is nearer. The list of policies
// does not change. As long as a chain does not deny, it has the same fields as a stack with its limits.
func TestStacksAndChainsShowTheNearestQuotaAlike(t *testing.T) {
	limits := []ratelimit.Limit{ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("burst"), perMinute(12, "minute"),
		ratelimit.SlidingLog(ratelimit.Rate{Units: 7, Per: 10 * time.Second}).Named("ten")}
	clock := new(ratelimittest.Clock)
	var members []ratelimit.Reserver[string]
	for _, limit := range limits {
		members = append(members, ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{Clock: clock})))
	}
	chained, stacked := ratelimit.Must(chain.New(members...)), stack(clock, limits...)
	byChain, byStack := viewsOf(t, chained), viewsOf(t, stacked)
	names, denied := map[string]int{}, 0
	random := rand.New(rand.NewPCG(5, 25))
	for range 2000 {
		clock.Advance(time.Duration(random.Int64N(int64(4 * time.Second))))
		_, want, d := take(t, byStack, stacked)
		policy, standing, again := take(t, byChain, chained)
		require.Equal(t, d.Allowed, again.Allowed)
		require.Equal(t, `"burst";q=5;w=5;weir-refill, "minute";q=12;w=60, "ten";q=7;w=10;weir-refill`, policy)
		if !d.Allowed {
			denied++
			continue
		}
		require.Equal(t, want, standing)
		name, _, _ := strings.Cut(standing, ";")
		names[name]++
	}
	assert.Len(t, names, 3, "each is the nearest at times")
	assert.Positive(t, denied)
}

// No field has a word for a month: w is the length of the present window,
// and the next one's may differ. A bubble's time begins on January 1, 2000.
func TestAPolicysWindowIsThePresentOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const day = 24 * time.Hour
		quota := ratelimit.Calendar(2, ratelimit.Month("UTC", 1)).Named("quota")
		l := stack(nil, quota)
		v := viewsOf(t, l)
		time.Sleep(20 * day)
		policy, standing, _ := take(t, v, l)
		assert.Equal(t, `"quota";q=2;w=2678400`, policy, "31 days")
		assert.Equal(t, `"quota";r=1;t=950400`, standing, "11 days are left")
		_, standing, _ = v.Fields(t.Context(), &ratelimit.Decision{Allowed: true, Limit: quota, Remaining: 2}, false)
		assert.Equal(t, `"quota";r=2;t=950400`, standing, "a fresh key's budget ends with the window, too")
		_, standing, _ = v.Fields(t.Context(), &ratelimit.Decision{Allowed: true, Limit: quota, Remaining: 1, ResetAfter: 90 * day}, false)
		assert.Equal(t, `"quota";r=1;t=2678400`, standing, "a reset of another layer")
		plan := ratelimit.Calendar(9, ratelimit.Month("UTC", 1)).Named("quota")
		assert.Equal(t, `"quota";q=9;w=2678400`, policies(t, v, plan))
		time.Sleep(11 * day)
		policy, standing, _ = take(t, v, l)
		assert.Equal(t, `"quota";q=2;w=2505600`, policy, "29 days")
		assert.Equal(t, `"quota";r=1;t=2505600`, standing)
		assert.Equal(t, `"quota";q=9;w=2505600`, policies(t, v, plan))
	})
}

// Once nothing is left, every algorithm's answer names the instant of the next unit.
// If it named the instant when the budget is whole, a client would wait too long.
func TestWithNothingLeftTheResetIsTheNextUnit(t *testing.T) {
	for _, limit := range []ratelimit.Limit{
		ratelimit.TokenBucket(ratelimit.PerMinute(6), 9),
		ratelimit.TokenBucket(ratelimit.Per(7, 61*time.Second), 3),
		ratelimit.FixedWindow(ratelimit.PerMinute(6)),
		ratelimit.SlidingLog(ratelimit.PerMinute(6)),
		ratelimit.SlidingCounter(ratelimit.PerMinute(6)),
	} {
		clock, seen := new(ratelimittest.Clock), 0
		rnd, l := rand.New(rand.NewPCG(1, 1)), stack(clock, limit)
		v := viewsOf(t, l)
		for range 60 {
			clock.Advance(time.Duration(rnd.IntN(11)) * time.Second)
			_, standing, d := take(t, v, l)
			next, err := l.Peek(t.Context(), "", 1)
			require.NoError(t, err)
			if !d.Allowed || next.Allowed {
				continue
			}
			seen++
			want := strconv.FormatInt(int64((next.RetryAfter+time.Second-1)/time.Second), 10)
			require.Equal(t, want, standing[strings.LastIndexByte(standing, '=')+1:], limit)
		}
		require.Greater(t, seen, 3, limit)
	}
}

// One request exhausts two layers. The fields show the layer with the later reset or, if both are equal,
// the first. The order of the buckets' addresses in memory must not matter, so the test tries often.
func TestOfTwoExhaustedLayersTheLongerResetIsSent(t *testing.T) {
	minute, hour := perMinute(1, "minute"), ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("hour")
	for range 20 {
		for _, row := range []struct {
			limits []ratelimit.Limit
			want   string
		}{
			{[]ratelimit.Limit{minute, hour}, `"hour";r=0;t=3600`},
			{[]ratelimit.Limit{hour, minute}, `"hour";r=0;t=3600`},
			{[]ratelimit.Limit{minute.Named("first"), minute.Named("second")}, `"first";r=0;t=60`},
		} {
			l := stack(new(ratelimittest.Clock), row.limits...)
			_, standing, _ := take(t, viewsOf(t, l), l)
			assert.Equal(t, row.want, standing)
		}
	}
}

// If a layer's keys have their own limits, the layer lists none until it has decided.
func TestThePlanOfAKeyStandsForTheLimitOfItsLayer(t *testing.T) {
	clock := new(ratelimittest.Clock)
	plans := map[string]ratelimit.Limit{"gold": perMinute(50, "key"), "trial": perMinute(2, "trial")}
	perKey := ratelimit.Must(ratelimit.New(perMinute(5, "key"), &ratelimit.Options[string]{Clock: clock, LimitFor: func(key string) ratelimit.Limit { return plans[key] }}))
	global := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerSecond(1000)).Named("global"), &ratelimit.Options[struct{}]{Clock: clock}))
	all := ratelimit.Must(ratelimit.All(ratelimit.By(perKey, func(key string) (string, error) { return key, nil }), ratelimit.Global[string](global)))
	v := viewsOf(t, all)
	of := func(key string) string {
		d, err := all.Take(t.Context(), key, 1)
		require.NoError(t, err)
		return policies(t, v, d.Limit)
	}
	for range 2 { // the second time from the cached values
		for plan, want := range map[string]string{
			"plain": `"key";q=5;w=60, "global";q=1000;w=1`,
			"gold":  `"key";q=50;w=60, "global";q=1000;w=1`,
			"trial": `"trial";q=2;w=60, "global";q=1000;w=1`,
		} {
			assert.Equal(t, want, of(plan), plan)
		}
	}
	require.NoError(t, global.SetLimit(perMinute(3, "global")))
	clock.Advance(time.Hour)
	assert.Equal(t, `"global";q=3;w=60`, of("gold"), "global has decided")
	require.NoError(t, global.SetLimit(perMinute(1000, "global")))
	assert.Equal(t, `"key";q=50;w=60, "global";q=1000;w=60`, of("gold"), "what was cached is forgotten")
}
