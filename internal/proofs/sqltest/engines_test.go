package sqltest

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policy/policysql"
	"github.com/weir-go/ratelimit/policyredis"
	"github.com/weir-go/ratelimit/sqllimit"
)

// engine is a store for the budgets of rules.
type engine struct {
	// open returns a function that makes engines on the same store, one for each process. Each name has its own budgets.
	open    func(t *testing.T) func(name string) policy.Engine
	refused string // a limit the store cannot count
	shared  bool   // whether several processes share it
}

// monotonic is a clock without dates.
type monotonic struct{}

func (monotonic) Now() time.Duration { return time.Since(begun) }

var begun = time.Now()

// engines are this library's engines. Each decision may take a minute, because machines may be slow.
var engines = map[string]engine{
	"memory": {func(*testing.T) func(string) policy.Engine {
		return func(string) policy.Engine { return policy.Memory(&policy.MemoryOptions{Clock: monotonic{}}) }
	}, "calendar 5/day UTC", false},
	"redis": {func(t *testing.T) func(string) policy.Engine {
		client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute})
		t.Cleanup(func() { _ = client.Close() })
		return func(name string) policy.Engine {
			return policyredis.New(client, &policyredis.Options{Prefix: name + ":", Timeout: time.Minute})
		}
	}, "sliding-log 1000000/h", true},
	"postgresql": onSQL("postgresql"),
	"mariadb":    onSQL("mariadb"),
}

func onSQL(server string) engine {
	return engine{func(t *testing.T) func(string) policy.Engine {
		s := limitServers[server]
		db := s.migrated(t)
		return func(name string) policy.Engine {
			return policysql.New(db, &sqllimit.Options{Name: name, Dialect: s.dialect, Timeout: time.Minute})
		}
	}, "sliding-log 1000000/h", true}
}

// served is one process deciding by rules.
type served struct {
	*policy.Policies
	t        *testing.T
	decided  []policy.Decision
	reached  []policy.Threshold
	observed sync.Mutex
}

func newServed(t *testing.T, e policy.Engine, rules string) *served {
	t.Helper()
	x := &served{t: t}
	var err error
	x.Policies, err = policy.New(parsedRules(t, rules), &policy.Options{
		Engine: e,
		OnDecision: func(d policy.Decision) {
			x.observed.Lock()
			defer x.observed.Unlock()
			x.decided = append(x.decided, d)
		},
		OnThreshold: func(at policy.Threshold) { x.reached = append(x.reached, at) },
	})
	require.NoError(t, err)
	return x
}

func parsedRules(t *testing.T, rules string) *policy.Set {
	t.Helper()
	set, err := policy.Parse([]byte("rules:\n" + rules))
	require.NoError(t, err)
	return set
}

// take reports whether a request is allowed, and returns the remaining budget.
func (x *served) take(a policy.Attributes, cost int) (bool, int) {
	x.t.Helper()
	d, err := x.Take(x.t.Context(), a, cost)
	require.NoError(x.t, err)
	return d.Allowed, d.Remaining
}

// left returns the remaining units of a rule's key.
func (x *served) left(rule string, key ...string) int {
	x.t.Helper()
	d, err := x.Peek(x.t.Context(), policy.Subject{Rule: rule, Key: key}, 1)
	if err != nil {
		require.ErrorIs(x.t, err, ratelimit.ErrExceedsLimit)
	}
	return d.Remaining
}

var ann, bob = policy.Attributes{"user": "ann"}, policy.Attributes{"user": "bob"}

// engineCases have the same results on all engines. Two processes share the store. In memory they are one process.
var engineCases = []struct {
	name, rules string
	play        func(t *testing.T, e engine, x, other *served)
}{
	{"a refund above the spending", `- {name: api, key: user, limit: token-bucket 100/d burst 100, plans: {pro: fixed-window 500/d}}`, func(t *testing.T, _ engine, x, other *served) {
		subject := policy.Subject{Rule: "api", Key: []string{"ann"}}
		err := x.Adjust(t.Context(), subject, -50)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "the key has spent nothing")
		x.take(ann, 30)
		require.NoError(t, other.Adjust(t.Context(), subject, -10))
		err = other.Adjust(t.Context(), subject, -50)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		assert.ErrorContains(t, err, "had spent 20 units")
		assert.ErrorContains(t, err, "write an entry in overrides with until")
		assert.Equal(t, 100, x.left("api", "ann"))
	}},
	{"decisions", `
- {name: api, key: user, limit: fixed-window 3/d}
- {name: all, limit: token-bucket 100/d burst 100}`, func(t *testing.T, _ engine, x, other *served) {
		for i := range 5 {
			p := []*served{x, other}[i%2]
			d, err := p.Take(t.Context(), ann, 1)
			require.NoError(t, err)
			assert.Equal(t, i < 3, d.Allowed)
			assert.Equal(t, "api", d.Limit.Name)
			assert.Equal(t, max(0, 2-i), d.Remaining)
			assert.Equal(t, i >= 3, d.RetryAfter > 0)
		}
		assert.True(t, x.Allow(bob, 1))
		assert.Equal(t, 96, other.left("all"), "the denied requests have charged no rule")
		_, err := x.Take(t.Context(), bob, 4)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		_, err = x.Take(t.Context(), bob, -1)
		require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		for _, d := range x.Denied(9) {
			assert.Equal(t, "api", d.Rule)
		}
		require.Len(t, x.Denied(9), 2)
	}},
	{"plans", `
- {name: api, key: user, limit: fixed-window 2/d, plans: {pro: fixed-window 5/d, free: blocked}}`, func(t *testing.T, _ engine, x, other *served) {
		x.take(ann, 2)
		pro := policy.Attributes{"user": "ann", "plan": "pro"}
		ok, left := other.take(pro, 1)
		assert.True(t, ok)
		assert.Equal(t, 2, left, "an upgrade keeps the spending")
		assert.False(t, x.Allow(ann, 1))
		assert.True(t, x.Allow(pro, 2))
		_, err := x.Take(t.Context(), policy.Attributes{"user": "eve", "plan": "free"}, 1)
		require.ErrorIs(t, err, ratelimit.ErrBlocked)
	}},
	{"overrides", `
- {name: api, key: [user, region], limit: fixed-window 2/d, overrides: [{key: [ann, eu], limit: fixed-window 4/d}, {key: [eve, eu], limit: unlimited}]}`, func(t *testing.T, _ engine, x, _ *served) {
		eu := func(user string) policy.Attributes { return policy.Attributes{"user": user, "region": "eu"} }
		assert.True(t, x.Allow(eu("ann"), 4))
		assert.False(t, x.Allow(eu("ann"), 1))
		assert.True(t, x.Allow(eu("bob"), 2))
		assert.False(t, x.Allow(eu("bob"), 1))
		assert.True(t, x.Allow(eu("eve"), 1_000_000))
	}},
	{"limit_from", `
- {name: api, key: user, limit: fixed-window 2/d, limit_from: quota}`, func(t *testing.T, e engine, x, other *served) {
		with := func(user, quota string) policy.Attributes { return policy.Attributes{"user": user, "quota": quota} }
		assert.True(t, x.Allow(with("ann", "5"), 2))
		assert.True(t, other.Allow(with("ann", "5"), 3))
		assert.False(t, x.Allow(with("ann", "5"), 1))
		assert.True(t, x.Allow(with("ann", "fixed-window 7/d"), 2))
		assert.True(t, x.Allow(with("bob", "often"), 2))
		assert.False(t, x.Allow(with("bob", e.refused), 1), "a limit that the engine cannot count is none")
		assert.EqualValues(t, 2, x.Stats().BadLimits)
	}},
	{"shadow", `
- {name: api, key: user, limit: fixed-window 3/d}
- {name: trial, key: user, limit: fixed-window 1/d, shadow: true}`, func(t *testing.T, _ engine, x, _ *served) {
		for i := range 5 {
			assert.Equal(t, i < 3, x.Allow(ann, 1))
		}
		assert.Zero(t, x.left("trial", "ann"))
		var shadow, enforced []bool
		for _, d := range x.decided {
			enforced, shadow = append(enforced, d.Rules[0].Decision.Allowed), append(shadow, d.Rules[1].Decision.Allowed)
			require.True(t, d.Rules[1].Shadow)
		}
		assert.Equal(t, []bool{true, true, true, false, false}, enforced)
		assert.Equal(t, []bool{true, false, false}, shadow[:3])
	}},
	{"cost", `
- {name: requests, key: user, limit: fixed-window 3/d, cost: 1}
- {name: tokens, key: user, limit: fixed-window 1000/d, cost: tokens, optional: true}`, func(t *testing.T, _ engine, x, _ *served) {
		assert.True(t, x.Allow(policy.Attributes{"user": "ann", "tokens": "600"}, 50))
		assert.False(t, x.Allow(policy.Attributes{"user": "ann", "tokens": "600"}, 50))
		assert.Equal(t, []int{2, 400}, []int{x.left("requests", "ann"), x.left("tokens", "ann")}, "all rules are charged, or none")
		assert.True(t, x.Allow(ann, 50))
		assert.Equal(t, []int{1, 400}, []int{x.left("requests", "ann"), x.left("tokens", "ann")})
	}},
	{"reserve and settle", `
- {name: tokens, key: user, limit: token-bucket 10/d burst 10}
- {name: all, limit: fixed-window 100/d}`, func(t *testing.T, _ engine, x, other *served) {
		res, err := x.Reserve(t.Context(), ann, 8, 0)
		require.NoError(t, err)
		require.True(t, res.Allowed)
		assert.False(t, other.Allow(ann, 3))
		require.NoError(t, res.Settle(3))
		assert.Equal(t, []int{7, 97}, []int{other.left("tokens", "ann"), other.left("all")})
		res, err = x.Reserve(t.Context(), ann, 7, 0)
		require.NoError(t, err)
		res.Cancel()
		assert.Equal(t, []int{7, 97}, []int{other.left("tokens", "ann"), other.left("all")})
		res, err = x.Reserve(t.Context(), ann, 8, 0)
		require.NoError(t, err)
		assert.False(t, res.Allowed)
	}},
	{"wait", `
- {name: api, key: user, limit: token-bucket 100/s burst 1}
- {name: day, key: user, limit: fixed-window 3/d}`, func(t *testing.T, _ engine, x, _ *served) {
		for range 3 {
			require.NoError(t, x.Wait(t.Context(), ann, 1))
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
		defer cancel()
		require.ErrorIs(t, x.Wait(ctx, ann, 1), context.DeadlineExceeded)
	}},
	{"a wait that gives up", `
- {name: wide, limit: fixed-window 100/h}
- {name: narrow, key: user, limit: token-bucket 1/h burst 1}
- {name: trial, shadow: true, limit: fixed-window 1/h}`, func(t *testing.T, _ engine, x, _ *served) {
		end := func(n int) outcome.Outcome { return outcome.Of(x.decided[n].Decision, x.decided[n].Err) }
		require.NoError(t, x.Wait(t.Context(), ann, 1))
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		require.ErrorIs(t, x.Wait(ctx, ann, 1), context.DeadlineExceeded)
		// A call fails if a busy machine has not yet booked.
		for patience := 50 * time.Millisecond; len(x.decided) < 3 || end(2) == outcome.Failed && patience < time.Minute; patience *= 2 {
			x.decided = x.decided[:2]
			ctx, cancel = context.WithCancel(t.Context())
			time.AfterFunc(patience, cancel)
			require.ErrorIs(t, x.Wait(ctx, ann, 1), context.Canceled)
		}
		require.ErrorIs(t, x.Wait(ctx, ann, 1), context.Canceled)
		require.Len(t, x.decided, 4)
		want := []outcome.Outcome{outcome.Allowed, outcome.Denied, outcome.Denied, outcome.Failed}
		assert.Equal(t, want, []outcome.Outcome{end(0), end(1), end(2), end(3)})
		assert.Equal(t, "narrow", x.decided[0].Decision.Limit.Name)
		for _, d := range x.decided[1:3] {
			assert.Equal(t, "narrow", d.Decision.Limit.Name)
			assert.Equal(t, []bool{true, false}, []bool{d.Rules[0].Decision.Allowed, d.Rules[1].Decision.Allowed})
			assert.True(t, d.Rules[0].Answered && d.Rules[1].Answered)
			assert.Positive(t, d.Rules[1].Decision.RetryAfter)
			assert.False(t, d.Rules[0].Spent || d.Rules[1].Spent)
		}
		assert.False(t, x.decided[3].Rules[0].Answered)
	}},
	{"a budget under two names", `
- {name: api, key: user, limit: fixed-window 10/d}`, func(t *testing.T, e engine, x, other *served) {
		x.take(ann, 1)
		require.NoError(t, other.Update(parsedRules(t, `
- {name: public, budget: Api, key: user, limit: fixed-window 10/d}
- {name: later, from: 2500-01-01T00:00:00Z, limit: blocked}`)))
		for i := range 12 {
			d, err := []*served{x, other}[i%2].Take(t.Context(), ann, 1)
			require.NoError(t, err)
			assert.Equal(t, i < 9, d.Allowed)
			assert.Equal(t, !e.shared || i%2 == 1, d.Limit.Name == "public", d.Limit.Name)
		}
	}},
	{"reload", `
- {name: api, key: user, limit: fixed-window 3/d}
- {name: other, limit: fixed-window 9/d}`, func(t *testing.T, _ engine, x, _ *served) {
		x.take(ann, 3)
		require.NoError(t, x.Update(parsedRules(t, "- {name: API, key: user, limit: fixed-window 5/d}")))
		assert.True(t, x.Allow(ann, 2), "the spending stays under the new limit")
		assert.False(t, x.Allow(ann, 1))
		require.NoError(t, x.Update(parsedRules(t, "- {name: api, key: user, limit: fixed-window 1/d, plans: {pro: fixed-window 6/d}}")))
		assert.False(t, x.Allow(ann, 1))
		assert.True(t, x.Allow(policy.Attributes{"user": "ann", "plan": "pro"}, 1))
		require.NoError(t, x.Update(new(policy.Set)))
		assert.True(t, x.Allow(ann, 1), "no rules, no limit")
	}},
	{"kill switch", `
- {name: api, key: user, limit: fixed-window 3/d}`, func(t *testing.T, _ engine, x, _ *served) {
		x.take(ann, 2)
		killed := parsedRules(t, "- {name: api, key: user, limit: fixed-window 3/d}")
		killed.KillSwitch = true
		require.NoError(t, x.Update(killed))
		assert.True(t, x.Allow(ann, 100))
		assert.EqualValues(t, 1, x.Stats().Killed)
		assert.Equal(t, 1, x.left("api", "ann"), "the switch charges nothing")
		require.NoError(t, x.Update(parsedRules(t, "- {name: api, key: user, limit: fixed-window 3/d}")))
		assert.True(t, x.Allow(ann, 1))
		assert.False(t, x.Allow(ann, 1))
	}},
	{"peek and the page", `
- {name: api, key: user, limit: fixed-window 4/d}
- {name: probes, allow: true, match: {attributes: {user: root}}}`, func(t *testing.T, _ engine, x, other *served) {
		x.take(ann, 3)
		x.take(bob, 4)
		assert.True(t, x.Allow(policy.Attributes{"user": "root"}, 100))
		assert.Equal(t, []int{1, 0}, []int{other.left("api", "ann"), other.left("API", "bob")})
		require.NoError(t, other.Adjust(t.Context(), policy.Subject{Rule: "api", Key: []string{"ann"}}, 3))
		d, err := x.Peek(t.Context(), ann, 1)
		require.NoError(t, err)
		assert.Equal(t, []any{false, 0, 2}, []any{d.Allowed, d.Remaining, d.Debt})
		ex, err := x.Explain(ann, 1)
		require.NoError(t, err)
		require.Len(t, ex.Rules, 1)
		assert.Equal(t, 2, ex.Rules[0].Decision.Debt)
		limited := func() (keys []string) {
			form := url.Values{"do": {"limited"}}
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(form.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Accept", "application/json")
			w := httptest.NewRecorder()
			admin.New(other.Policies, &admin.Options{ShowKeys: true}).ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code, w.Body.String())
			var page struct{ Limited []struct{ Key string } }
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
			for _, l := range page.Limited {
				keys = append(keys, l.Key)
			}
			slices.Sort(keys)
			return keys
		}
		assert.Equal(t, []string{"ann", "bob"}, limited())
		require.NoError(t, other.Reset(t.Context(), policy.Subject{Rule: "api", Key: []string{"bob"}}))
		assert.Equal(t, []string{"ann"}, limited())
		assert.True(t, x.Allow(bob, 4))
	}},
	{"limited keys", `
- {name: Pairs, key: [user, region], limit: fixed-window 2/d, overrides: [
    {key: [big, eu], limit: fixed-window 100/d}, {key: [small, eu], limit: fixed-window 1/d}]}`, func(t *testing.T, _ engine, x, other *served) {
		for user, n := range map[string]int{"ann": 2, "bob": 1, "big": 3, "small": 1} {
			x.take(policy.Attributes{"user": user, "region": "eu"}, n)
		}
		found := map[string][]any{}
		require.NoError(t, other.Each(t.Context(), "pairs", func(key []string, d ratelimit.Decision) bool {
			found[strings.Join(key, "/")] = []any{d.Limit.Name, d.Allowed, d.Remaining}
			return true
		}))
		assert.Equal(t, map[string][]any{
			"ann/eu": {"Pairs", false, 0}, "bob/eu": {"Pairs", true, 1}, "big/eu": {"Pairs", true, 97}, "small/eu": {"Pairs", false, 0},
		}, found)
		visits := 0
		require.NoError(t, other.Each(t.Context(), "pairs", func([]string, ratelimit.Decision) bool { visits++; return false }))
		assert.Equal(t, 1, visits)
	}},
	{"notice", `
- {name: api, key: user, limit: fixed-window 10/d, notify: [80%]}`, func(t *testing.T, _ engine, x, _ *served) {
		x.take(ann, 7)
		assert.Empty(t, x.reached)
		x.take(ann, 1)
		x.take(ann, 1)
		require.Len(t, x.reached, 1)
		assert.Equal(t, []any{"api", "ann", 80, 2}, []any{x.reached[0].Rule, x.reached[0].Key, x.reached[0].Percent, x.reached[0].Decision.Remaining})
	}},
	{"a set that is refused", `
- {name: api, key: user, limit: fixed-window 3/d}
- {name: all, limit: fixed-window 9/d}`, func(t *testing.T, e engine, x, _ *served) {
		x.take(ann, 2)
		before := x.Stats().Generation
		for _, rules := range []string{
			"- {name: api, key: user, limit: fixed-window 1/d}\n- {name: all, limit: " + e.refused + "}",
			"- {name: api, key: user, limit: fixed-window 1/d, plans: {pro: " + e.refused + "}}",
			"- {name: api, key: user, limit: fixed-window 1/d, overrides: [{key: ann, limit: " + e.refused + "}]}",
		} {
			require.ErrorContains(t, x.Update(parsedRules(t, rules)), "rule \"a", rules)
		}
		assert.Equal(t, before, x.Stats().Generation)
		require.Error(t, x.Stats().LastError)
		assert.True(t, x.Allow(ann, 1), "the former set is in force, with its spending")
		assert.False(t, x.Allow(ann, 1))
		assert.Equal(t, 6, x.left("all"))
	}},
	{"units in use", `
- {name: streams, key: user, limit: concurrent 2 hold 1h, plans: {pro: concurrent 4 hold 1h}, overrides: [{key: eve, limit: concurrent 1 hold 1h}], limit_from: slots, cost: 1}
- {name: tokens, key: user, limit: fixed-window 1000/d}`, func(t *testing.T, _ engine, x, other *served) {
		reserve := func(p *served, a policy.Attributes, cost int) *ratelimit.Reservation {
			r, err := p.Reserve(t.Context(), a, cost, 0)
			require.NoError(t, err)
			return r
		}
		first, second := reserve(x, ann, 100), reserve(other, ann, 100)
		require.True(t, first.Allowed && second.Allowed)
		denied := reserve(x, ann, 100)
		assert.False(t, denied.Allowed)
		assert.Equal(t, "streams", denied.Limit.Name)
		assert.Equal(t, 800, x.left("tokens", "ann"), "a denial has charged nothing")
		_, err := other.Take(t.Context(), ann, 1)
		require.ErrorContains(t, err, `the limit "streams" is concurrent 2 hold 1h, and this call has no end`)
		assert.False(t, other.Allow(ann, 1))
		require.NoError(t, first.Extend(t.Context()))
		require.NoError(t, first.Settle(10))
		require.ErrorIs(t, first.Extend(t.Context()), ratelimit.ErrLost)
		assert.Equal(t, 890, other.left("tokens", "ann"))
		pro := policy.Attributes{"user": "ann", "plan": "pro"}
		for i := range 4 {
			assert.Equal(t, i < 3, reserve(x, pro, 1).Allowed, "a plan has more, and the call in use counts")
		}
		assert.False(t, reserve(other, ann, 1).Allowed)
		require.NoError(t, second.Cancel())
		eve := policy.Attributes{"user": "eve"}
		assert.True(t, reserve(x, eve, 1).Allowed)
		assert.False(t, reserve(other, eve, 1).Allowed)
		given := policy.Attributes{"user": "bob", "slots": "concurrent 3 hold 1h"}
		for i := range 4 {
			assert.Equal(t, i < 3, reserve([]*served{x, other}[i%2], given, 1).Allowed)
		}
		require.NoError(t, x.Reset(t.Context(), policy.Subject{Rule: "streams", Key: []string{"bob"}}))
		assert.True(t, reserve(other, given, 3).Allowed)
	}},
	{"charged always", `
- {name: tokens, key: user, limit: fixed-window 100/d, charge: always, plans: {off: blocked}}
- {name: requests, key: user, limit: fixed-window 9/d, cost: 1}
- {name: trial, key: user, limit: fixed-window 50/d, charge: always, shadow: true}`, func(t *testing.T, _ engine, x, other *served) {
		ok, _ := x.take(ann, 0)
		assert.True(t, ok)
		ok, _ = other.take(ann, 70)
		assert.True(t, ok)
		d, err := x.Take(t.Context(), ann, 70)
		require.NoError(t, err)
		assert.Equal(t, []any{false, "tokens", 0, 40}, []any{d.Allowed, d.Limit.Name, d.Remaining, d.Debt})
		assert.Positive(t, d.RetryAfter)
		d, err = other.Take(t.Context(), ann, 0)
		require.NoError(t, err)
		assert.Equal(t, []any{false, "tokens", 40}, []any{d.Allowed, d.Limit.Name, d.Debt})
		assert.Positive(t, d.RetryAfter)
		_, err = x.Take(t.Context(), ann, 300)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		for rule, debt := range map[string]int{"tokens": 340, "requests": 0, "trial": 390} {
			d, err := other.Peek(t.Context(), policy.Subject{Rule: rule, Key: []string{"ann"}}, 1)
			require.NoError(t, err)
			assert.Equal(t, debt, d.Debt, rule)
		}
		assert.Equal(t, 8, x.left("requests", "ann"))
		res, err := x.Reserve(t.Context(), bob, 60, 0)
		require.NoError(t, err)
		require.NoError(t, res.Settle(95))
		res, err = other.Reserve(t.Context(), bob, 60, 0)
		require.NoError(t, err)
		assert.False(t, res.Allowed)
		assert.Equal(t, 55, res.Debt)
		ok, _ = x.take(policy.Attributes{"user": "eve", "plan": "off"}, 0)
		assert.False(t, ok)
	}},
	{"callers at once", `
- {name: api, key: user, limit: fixed-window 40/d}
- {name: all, limit: fixed-window 60/d}`, func(t *testing.T, _ engine, x, other *served) {
		var admitted [2]atomic.Int64
		var callers sync.WaitGroup
		for i := range 16 {
			callers.Go(func() {
				for range 5 {
					if d, err := []*served{x, other}[i%2].Take(t.Context(), []policy.Attributes{ann, bob}[i/2%2], 1); assert.NoError(t, err) && d.Allowed {
						admitted[i/2%2].Add(1)
					}
				}
			})
		}
		callers.Wait()
		assert.Equal(t, int64(60), admitted[0].Load()+admitted[1].Load())
		assert.Equal(t, []int{40 - int(admitted[0].Load()), 40 - int(admitted[1].Load()), 0}, []int{x.left("api", "ann"), x.left("api", "bob"), x.left("all")})
	}},
}

// TestEveryEnginePlaysTheSameCases plays one table of cases with budgets in memory, on Redis, in PostgreSQL and in MariaDB.
func TestEveryEnginePlaysTheSameCases(t *testing.T) {
	for name, e := range engines {
		t.Run(name, func(t *testing.T) {
			make := e.open(t)
			for i, c := range engineCases {
				t.Run(c.name, func(t *testing.T) {
					prefix := fmt.Sprint("case", i)
					x := newServed(t, make(prefix), c.rules)
					other := x
					if e.shared {
						other = newServed(t, make(prefix), c.rules)
					}
					c.play(t, e, x, other)
				})
			}
		})
	}
}

// TestAMonthsQuotaSurvivesARestart checks that a new process finds the earlier ones' spending.
func TestAMonthsQuotaSurvivesARestart(t *testing.T) {
	for name, e := range engines {
		if !e.shared {
			continue
		}
		t.Run(name, func(t *testing.T) {
			make := e.open(t)
			const rules = "- {name: quota, key: user, limit: calendar 100/month UTC}"
			for deploy := range 3 {
				x := newServed(t, make("quotas"), rules)
				ok, left := x.take(ann, 30)
				assert.True(t, ok)
				assert.Equal(t, 70-30*deploy, left)
			}
			assert.False(t, newServed(t, make("quotas"), rules).Allow(ann, 11))
		})
	}
}
