package policy_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// parsed parses a text as a set.
func parsed(t testing.TB, text string) *policy.Set {
	t.Helper()
	set, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	return set
}

// inForce returns policies on a clock set by hand, and records their decisions.
func inForce(t testing.TB, text string) (*policy.Policies, *ratelimittest.Clock, *[]policy.Decision) {
	t.Helper()
	clock, decisions := new(ratelimittest.Clock), new([]policy.Decision)
	p, err := policy.New(parsed(t, text), &policy.Options{
		Engine:     policy.Memory(&policy.MemoryOptions{Clock: clock}),
		OnDecision: func(d policy.Decision) { *decisions = append(*decisions, d) },
	})
	require.NoError(t, err)
	return p, clock, decisions
}

// left returns the remaining budget for a request.
func left(t testing.TB, p *policy.Policies, r policy.Request) int {
	t.Helper()
	d, err := p.Take(t.Context(), r, 0)
	require.NoError(t, err)
	return d.Remaining
}

type attrs = policy.Attributes

func TestAllRulesThatMatchAreChargedOrNone(t *testing.T) {
	p, _, _ := inForce(t, `
rules:
- {name: user, key: user, limit: fixed-window 3/h}
- {name: search, match: {route: /search/}, limit: fixed-window 4/h}
`)
	ann := attrs{"user": "ann", "path": "/search/x"}
	for i := range 4 {
		assert.Equal(t, i < 3, p.Allow(ann, 1))
	}
	bob := attrs{"user": "bob", "path": "/search/x"}
	assert.True(t, p.Allow(bob, 1), "what ann was denied has charged nothing")
	d, err := p.Take(t.Context(), bob, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, "search", d.Limit.Name)
	assert.Equal(t, 2, left(t, p, attrs{"user": "bob", "path": "/other"}), "nor has what bob was denied")
}

// TestAllowAgreesWithTake compares Allow and Take on policies in the same state.
func TestAllowAgreesWithTake(t *testing.T) {
	const rules = `
rules:
- {name: user, match: {route: /}, key: user, limit: fixed-window 3/h, overrides: [{key: mallory, limit: blocked}]}
- {name: search, match: {route: /search}, limit: fixed-window 4/h, cost: weight}
- {name: trial, match: {route: /}, limit: fixed-window 1/h, shadow: true}
`
	made := func(text string) *policy.Policies {
		p, err := policy.New(parsed(t, text), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: new(ratelimittest.Clock)})})
		require.NoError(t, err)
		return p
	}
	a, b := made(rules), made(rules)
	allowed := 0
	for i, r := range []policy.Request{
		attrs{}, attrs{"path": "/"}, attrs{"path": "/", "user": "ann"}, attrs{"path": "/", "user": "mallory"},
		attrs{"path": "/search", "user": "ann"}, attrs{"path": "/search", "user": "ann", "weight": "x"},
		attrs{"path": "/search", "user": "bob", "weight": "2"}, attrs{"path": "/search", "user": "bob", "weight": "2"},
		attrs{"path": "/search", "user": "bob", "weight": "1"}, attrs{"path": "/", "user": "ann"}, nil,
	} {
		for _, cost := range []int{-1, 0, 1, 2, 5} {
			d, err := a.Take(t.Context(), r, cost)
			got := b.Allow(r, cost)
			assert.Equal(t, d.Allowed && err == nil, got, "request %d, cost %d", i, cost)
			if got && cost > 0 {
				allowed++
			}
		}
	}
	assert.Greater(t, allowed, 5)
	killed := made("kill_switch: true\n" + rules[1:])
	assert.True(t, killed.Allow(attrs{"path": "/", "user": "mallory"}, 1))
	assert.EqualValues(t, 1, killed.Stats().Killed)
}

func TestARequestThatNoRuleMatchesIsAllowed(t *testing.T) {
	for name, text := range map[string]string{
		"no rules":        "rules: []",
		"another route":   "rules:\n- {name: a, match: {route: /a}, limit: blocked}",
		"a disabled rule": "rules:\n- {name: a, limit: blocked, disabled: true}",
	} {
		p, _, decisions := inForce(t, text)
		d, err := p.Take(t.Context(), attrs{"path": "/b"}, 7)
		require.NoError(t, err, name)
		assert.True(t, d.Allowed)
		assert.Equal(t, ratelimit.AlgorithmUnlimited, d.Limit.Algorithm)
		require.Len(t, *decisions, 1)
		assert.Empty(t, (*decisions)[0].Rules)
	}
	p, err := policy.New(nil, nil)
	require.NoError(t, err)
	assert.True(t, p.Allow(attrs{}, 1), "a nil set limits nothing")
}

const plans = `
rules:
- name: api
  key: [user]
  limit: fixed-window 10/h
  plans: {free: fixed-window 5/h, pro: fixed-window 100/h, staff: unlimited}
  overrides:
  - {key: acme, limit: fixed-window 1000/h}
  - {key: mallory, limit: blocked}
`

func TestWhichLimitHoldsForAKey(t *testing.T) {
	p, _, decisions := inForce(t, plans)
	for _, test := range []struct {
		request attrs
		left    int
		plan    string
	}{
		{attrs{"user": "ann", "plan": "free"}, 5, "free"},
		{attrs{"user": "bob", "plan": "pro"}, 100, "pro"},
		{attrs{"user": "cleo"}, 10, ""},
		{attrs{"user": "dan", "plan": ""}, 10, ""},
		{attrs{"user": "eve", "plan": "unheard-of"}, 10, ""},
		{attrs{"user": "acme", "plan": "free"}, 1000, ""},
		{attrs{"user": "ann2", "plan": "staff"}, ratelimit.Unlimited().Capacity(), "staff"},
	} {
		assert.Equal(t, test.left, left(t, p, test.request), "%v", test.request)
		last := (*decisions)[len(*decisions)-1]
		require.Len(t, last.Rules, 1)
		assert.Equal(t, test.plan, last.Rules[0].Plan)
		assert.Equal(t, "api", last.Rules[0].Decision.Limit.Name)
	}
	_, err := p.Take(t.Context(), attrs{"user": "mallory"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked)
	assert.NotContains(t, err.Error(), "mallory")
}

func TestAnUpgradeKeepsTheSpending(t *testing.T) {
	p, _, _ := inForce(t, plans)
	require.True(t, p.Allow(attrs{"user": "ann", "plan": "free"}, 4))
	assert.Equal(t, 96, left(t, p, attrs{"user": "ann", "plan": "pro"}))
	require.True(t, p.Allow(attrs{"user": "ann", "plan": "pro"}, 50))
	assert.Equal(t, 0, left(t, p, attrs{"user": "ann", "plan": "free"}), "and so does a downgrade")
}

func TestSeveralAttributesAreOneKey(t *testing.T) {
	p, _, _ := inForce(t, "rules:\n- {name: a, key: [user, region], limit: fixed-window 1/h, overrides: [{key: [a, bc], limit: fixed-window 9/h}]}")
	assert.True(t, p.Allow(attrs{"user": "a", "region": "b:c"}, 1))
	assert.True(t, p.Allow(attrs{"user": "a:b", "region": "c"}, 1), "no two lists of values share a key")
	assert.True(t, p.Allow(attrs{"user": "1:a", "region": "b"}, 1))
	assert.Equal(t, 9, left(t, p, attrs{"user": "a", "region": "bc"}))
	assert.Equal(t, 1, left(t, p, attrs{"user": "ab", "region": "c"}))
	assert.Equal(t, 0, left(t, p, attrs{"user": "a", "region": "b:c"}))
}

func TestNoRequestEvadesARuleByLeavingAnAttributeOut(t *testing.T) {
	p, _, decisions := inForce(t, "rules:\n- {name: a, key: user, limit: fixed-window 1/h}\n- {name: b, key: tenant, optional: true, limit: fixed-window 1/h}")
	for name, request := range map[string]attrs{"missing": {}, "empty": {"user": ""}} {
		d, err := p.Take(t.Context(), request, 1)
		require.ErrorIs(t, err, keyfunc.ErrNoKey, name)
		require.ErrorIs(t, err, keyfunc.ErrNoKey)
		assert.False(t, d.Allowed)
		assert.False(t, p.Allow(request, 0))
	}
	_, err := p.Take(t.Context(), attrs{"user": string(make([]byte, 1025))}, 1)
	require.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	require.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	require.ErrorIs(t, (*decisions)[len(*decisions)-1].Err, keyfunc.ErrMalformedKey)
	assert.True(t, p.Allow(attrs{"user": "ann"}, 1), "an optional rule does not apply")
	assert.True(t, p.Allow(attrs{"user": "bob", "tenant": "t"}, 1))
	assert.False(t, p.Allow(attrs{"user": "cleo", "tenant": "t"}, 1))
}

func TestCostsOfRules(t *testing.T) {
	p, _, _ := inForce(t, `
rules:
- {name: requests, limit: fixed-window 100/h, cost: 1}
- {name: heavy, limit: fixed-window 100/h, cost: 10}
- {name: tokens, limit: fixed-window 1000/h, cost: tokens}
- {name: bytes, limit: fixed-window 5000/h}
`)
	names := map[string]int{"requests": 100, "heavy": 100, "tokens": 1000, "bytes": 5000}
	standing := func() map[string]int {
		out := map[string]int{}
		for name := range names {
			out[name] = ruleLeft(t, p, name)
		}
		return out
	}
	for _, row := range []struct {
		tokens string
		cost   int
		want   map[string]int
	}{
		{"300", 2000, map[string]int{"requests": 99, "heavy": 90, "tokens": 700, "bytes": 3000}},
		{"300", 0, map[string]int{"requests": 99, "heavy": 90, "tokens": 700, "bytes": 3000}}, // a caller's 0 charges nothing
		{"0", 1, map[string]int{"requests": 98, "heavy": 80, "tokens": 700, "bytes": 2999}},   // an attribute may make a rule cost nothing
	} {
		require.True(t, p.Allow(attrs{"tokens": row.tokens}, row.cost))
		assert.Equal(t, row.want, standing(), "%s %d", row.tokens, row.cost)
	}
	for _, bad := range []string{"many", "-1", "1.5", "99999999999999999999"} {
		_, err := p.Take(t.Context(), attrs{"tokens": bad}, 1)
		require.ErrorIs(t, err, keyfunc.ErrMisconfigured, bad)
		assert.NotContains(t, err.Error(), bad)
	}
	_, err := p.Take(t.Context(), attrs{}, 1)
	require.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = p.Take(t.Context(), attrs{"tokens": "1"}, -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	_, err = p.Take(t.Context(), nil, 1)
	require.ErrorContains(t, err, "the Request is nil")
	_, err = p.Peek(t.Context(), (*policy.Subject)(nil), 1)
	require.ErrorContains(t, err, "the Subject is nil")
	assert.Equal(t, map[string]int{"requests": 98, "heavy": 80, "tokens": 700, "bytes": 2999}, standing())
}

// ruleLeft returns the remaining budget of one rule without a key.
func ruleLeft(t *testing.T, p *policy.Policies, name string) int {
	t.Helper()
	ex, err := p.Explain(attrs{"tokens": "0"}, 0)
	require.NoError(t, err)
	for _, r := range ex.Rules {
		if r.Rule == name {
			require.NotNil(t, r.Decision)
			return r.Decision.Remaining
		}
	}
	t.Fatalf("no rule %s", name)
	return 0
}

func TestAShadowRuleDecidesAndDeniesNothing(t *testing.T) {
	p, _, decisions := inForce(t, "rules:\n- {name: trial, shadow: true, limit: fixed-window 1/h}\n- {name: real, limit: fixed-window 3/h}")
	for i := range 4 {
		assert.Equal(t, i < 3, p.Allow(attrs{}, 1))
	}
	var trial []bool
	for _, d := range *decisions {
		require.Len(t, d.Rules, 2)
		assert.True(t, d.Rules[0].Answered)
		assert.True(t, d.Rules[0].Shadow)
		trial = append(trial, d.Rules[0].Decision.Allowed)
	}
	assert.Equal(t, []bool{true, false, false, false}, trial)
}

func TestAShadowRuleThatLacksAnAttributeDeniesNothing(t *testing.T) {
	p, _, _ := inForce(t, "rules:\n- {name: trial, shadow: true, key: user, cost: tokens, limit: fixed-window 1/h}\n- {name: real, limit: fixed-window 2/h}")
	assert.True(t, p.Allow(attrs{}, 1))
	assert.True(t, p.Allow(attrs{"user": "ann", "tokens": "many"}, 1))
	assert.False(t, p.Allow(attrs{}, 1))
	ex, err := p.Explain(attrs{}, 1)
	require.NoError(t, err)
	require.NoError(t, ex.Err)
	assert.Contains(t, ex.Rules[0].Skipped, "the request has no")
}

func TestTheKillSwitchLetsEverythingPass(t *testing.T) {
	text := "rules:\n- {name: a, key: user, limit: fixed-window 1/h}\n"
	p, _, decisions := inForce(t, text)
	require.True(t, p.Allow(attrs{"user": "ann"}, 1))
	require.NoError(t, p.Update(parsed(t, "kill_switch: true\n"+text)))
	for range 5 {
		assert.True(t, p.Allow(attrs{"user": "ann"}, 1))
		assert.True(t, p.Allow(attrs{}, 1), "even without the key")
	}
	assert.Equal(t, uint64(10), p.Stats().Killed)
	assert.True(t, p.Stats().KillSwitch)
	assert.True(t, (*decisions)[1].KillSwitch)
	require.NoError(t, p.Update(parsed(t, text)))
	assert.False(t, p.Allow(attrs{"user": "ann"}, 1), "the spending stays, and nothing was charged")
	assert.True(t, p.Allow(attrs{"user": "bob"}, 1))
}

// TestAQuestionUnderTheKillSwitch checks that Peek returns what the
// request would get. Single keys can still be reset and charged.
func TestAQuestionUnderTheKillSwitch(t *testing.T) {
	const rules = "rules:\n- {name: a, key: user, limit: fixed-window 2/h}"
	p, _, _ := inForce(t, rules)
	ann := attrs{"user": "ann"}
	require.True(t, p.Allow(ann, 2))
	require.NoError(t, p.Update(parsed(t, "kill_switch: true\n"+rules)))
	d, err := p.Peek(t.Context(), ann, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed, "Take allows it")
	n, _, err := ratelimit.TakeUpTo[policy.Request](t.Context(), p, ann, 7)
	require.NoError(t, err)
	assert.Equal(t, 7, n)
	require.NoError(t, p.Adjust(t.Context(), ann, 5))
	of := policy.Subject{Rule: "a", Key: []string{"ann"}}
	d, err = p.Peek(t.Context(), of, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "the budget itself")
	require.NoError(t, p.Adjust(t.Context(), of, -1))
	d, err = p.Peek(t.Context(), &of, 1)
	require.NoError(t, err)
	assert.Equal(t, 1, d.Remaining, "the kill switch charged nothing")
	require.NoError(t, p.Reset(t.Context(), &of))
	assert.Equal(t, uint64(1), p.Stats().Killed, "only what decides is counted")
	require.NoError(t, p.Update(parsed(t, rules)))
	assert.Equal(t, 2, left(t, p, ann))
}

func TestUpdateKeepsBudgetsByName(t *testing.T) {
	p, _, _ := inForce(t, "rules:\n- {name: a, key: user, limit: fixed-window 10/h}\n- {name: b, limit: fixed-window 10/h}")
	ann := attrs{"user": "ann"}
	require.True(t, p.Allow(ann, 4))
	for _, test := range []struct {
		name, rules string
		left        int
	}{
		{"reordered", "- {name: b, limit: fixed-window 90/h}\n- {name: a, key: user, limit: fixed-window 10/h}", 6},
		{"another limit", "- {name: a, key: user, limit: fixed-window 100/h}", 96},
		{"another algorithm", "- {name: a, key: user, limit: sliding-log 100/h}", 96},
		{"another case of the name", "- {name: A, key: user, limit: sliding-log 100/h}", 96},
		{"disabled for a while", "- {name: a, key: user, limit: sliding-log 100/h, disabled: true}", ratelimit.Unlimited().Capacity()},
		{"in force again", "- {name: a, key: user, limit: sliding-log 100/h}", 96},
		{"another match", "- {name: a, match: {attributes: {user: ann}}, key: user, limit: sliding-log 100/h}", 96},
		{"another name", "- {name: c, key: user, limit: sliding-log 100/h}", 100},
		{"the old name, which comes back", "- {name: a, key: user, limit: sliding-log 100/h}", 96},
	} {
		require.NoError(t, p.Update(parsed(t, "rules:\n"+test.rules)), test.name)
		assert.Equal(t, test.left, left(t, p, ann), test.name)
	}
}

func TestAnInvalidSetChangesNothing(t *testing.T) {
	p, _, _ := inForce(t, "version: good\nrules:\n- {name: a, limit: fixed-window 3/h}")
	require.True(t, p.Allow(attrs{}, 1))
	for name, set := range map[string]*policy.Set{
		"nil":         nil,
		"no limit":    {Rules: []policy.Rule{{Name: "a"}}},
		"second rule": {Rules: []policy.Rule{{Name: "a", Limit: ratelimit.Blocked()}, {Name: "b"}}},
	} {
		require.ErrorAs(t, p.Update(set), new(*policy.Error), name)
		s := p.Stats()
		assert.Equal(t, "good", s.Version)
		assert.Equal(t, uint64(1), s.Generation)
		require.ErrorAs(t, s.LastError, new(*policy.Error))
		assert.Equal(t, 2, left(t, p, attrs{}))
	}
	_, err := policy.New(&policy.Set{Rules: []policy.Rule{{}}}, nil)
	require.ErrorAs(t, err, new(*policy.Error))
	_, err = policy.New(parsed(t, "rules:\n- {name: a, limit: blocked}"), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{MaxKeys: -1})})
	require.ErrorContains(t, err, "MaxKeys is -1")
}

func TestReserveSettlesTheCallersCost(t *testing.T) {
	p, _, decisions := inForce(t, "rules:\n- {name: requests, limit: fixed-window 10/h, cost: 1}\n- {name: tokens, limit: fixed-window 1000/h}")
	request := attrs{"tokens": "0"}
	r, err := p.Reserve(t.Context(), request, 400, 0)
	require.NoError(t, err)
	require.True(t, r.Allowed)
	require.NoError(t, r.Settle(150))
	assert.Equal(t, 850, ruleLeft(t, p, "tokens"))
	assert.Equal(t, 9, ruleLeft(t, p, "requests"), "a rule's own cost stays")

	denied, err := p.Reserve(t.Context(), request, 900, 0)
	require.NoError(t, err)
	assert.False(t, denied.Allowed)
	free, err := p.Reserve(t.Context(), request, 0, 0)
	require.NoError(t, err)
	require.NoError(t, free.Settle(50))
	assert.Equal(t, 800, ruleLeft(t, p, "tokens"))
	bad, err := p.Reserve(t.Context(), nil, 1, 0)
	require.Error(t, err)
	require.NotNil(t, bad)
	assert.Len(t, *decisions, 4)
}

func TestWaitSleepsUntilTheRulesAllow(t *testing.T) {
	p, err := policy.New(parsed(t, "rules:\n- {name: a, limit: token-bucket 100/s burst 1}"), nil)
	require.NoError(t, err)
	start := time.Now()
	for range 4 {
		require.NoError(t, p.Wait(t.Context(), attrs{}, 1))
	}
	assert.GreaterOrEqual(t, time.Since(start), 30*time.Millisecond)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	require.ErrorIs(t, p.Wait(ctx, attrs{}, 1), context.Canceled)
	require.NoError(t, ratelimit.Wait[policy.Request](t.Context(), p, attrs{}, 1))
}

func TestEveryRuleThatAppliedIsReported(t *testing.T) {
	p, _, decisions := inForce(t, "version: v7\nrules:\n- {name: a, key: user, limit: fixed-window 1/h}\n- {name: b, limit: fixed-window 9/h, cost: 3}\n- {name: c, match: {route: /c}, limit: blocked}")
	request := attrs{"user": "ann"}
	p.Allow(request, 1)
	p.Allow(request, 1)
	require.Len(t, *decisions, 2)
	first, second := (*decisions)[0], (*decisions)[1]
	assert.Equal(t, "v7", first.Version)
	assert.Equal(t, uint64(1), first.Generation)
	assert.Equal(t, policy.Request(request), first.Request)
	require.Len(t, first.Rules, 2)
	a, b := first.Rules[0], first.Rules[1]
	assert.Equal(t, []any{"a", "ann", 1, true, 0}, []any{a.Rule, a.Key, a.Cost, a.Spent, a.Decision.Remaining})
	assert.Equal(t, []any{"b", "", 3, true, 6}, []any{b.Rule, b.Key, b.Cost, b.Spent, b.Decision.Remaining})
	a, b = second.Rules[0], second.Rules[1]
	assert.Equal(t, []any{false, false, time.Hour}, []any{a.Decision.Allowed, a.Spent, a.Decision.RetryAfter})
	assert.Equal(t, []any{true, false}, []any{b.Decision.Allowed, b.Spent}, "it would have allowed, and was not charged")
	assert.Equal(t, 6, ruleLeft(t, p, "b"))
}

func TestZeroPoliciesPanicClearly(t *testing.T) {
	for name, call := range map[string]func(p *policy.Policies){
		"Allow":   func(p *policy.Policies) { p.Allow(attrs{}, 1) },
		"Update":  func(p *policy.Policies) { _ = p.Update(&policy.Set{}) },
		"Current": func(p *policy.Policies) { p.Current() },
		"Stats":   func(p *policy.Policies) { p.Stats() },
	} {
		assert.PanicsWithError(t, "policy: this Policies is nil or zero: make one with New", func() { call(new(policy.Policies)) }, name)
	}
}

func TestHTTPAttributes(t *testing.T) {
	r := httptest.NewRequest(http.MethodPost, "http://API.Example.com:8080/v1/a%20b?x=1", nil)
	r.RemoteAddr = "[2001:db8:1:2:3::4]:999"
	r.Header.Add("X-One", "1")
	r.Header.Add("X-Two", "1")
	r.Header.Add("X-Two", "2")
	r.Header.Add("X-Empty", "")
	r.Pattern = "POST /v1/{x}"
	h := policy.HTTP(r, policy.Attributes{"user": "ann", "route": "mine"})
	for name, want := range map[string]string{
		"method": "POST", "host": "api.example.com", "path": "/v1/a%20b", "route": "mine",
		"ip": "2001:db8:1:2::", "header:X-One": "1", "header:x-one": "1", "user": "ann",
	} {
		got, ok := h.Attribute(name)
		assert.True(t, ok, name)
		assert.Equal(t, want, got, name)
	}
	for _, name := range []string{"header:X-Two", "header:X-Empty", "header:X-None", "plan", "tenant", ""} {
		_, ok := h.Attribute(name)
		assert.False(t, ok, name)
	}
	route, _ := policy.HTTP(r, nil).Attribute("route")
	assert.Equal(t, "POST /v1/{x}", route)
	r.RemoteAddr = "@"
	_, ok := policy.HTTP(r, nil).Attribute("ip")
	assert.False(t, ok)
}

func TestPoliciesInHTTP(t *testing.T) {
	p, err := policy.New(parsed(t, "rules:\n- {name: api, key: user, limit: fixed-window 1/h}"), nil)
	require.NoError(t, err)
	limit, err := httplimit.New(ratelimit.Map(p, func(r *http.Request) (policy.Request, error) {
		return policy.HTTP(r, policy.Attributes{"user": r.Header.Get("X-User")}), nil
	}), nil)
	require.NoError(t, err)
	h := limit.Wrap(http.HandlerFunc(func(http.ResponseWriter, *http.Request) {}))
	get := func(user string) *httptest.ResponseRecorder {
		r, w := httptest.NewRequest(http.MethodGet, "/", nil), httptest.NewRecorder()
		r.Header.Set("X-User", user)
		h.ServeHTTP(w, r)
		return w
	}
	assert.Equal(t, http.StatusOK, get("ann").Code)
	w := get("ann")
	assert.Equal(t, http.StatusTooManyRequests, w.Code)
	assert.Equal(t, "3600", w.Header().Get("Retry-After"))
	assert.Contains(t, w.Body.String(), `"violated-policies":["api"]`)
}

// TestReloadsLoseNoDecisionAndNoSpending updates the rules a thousand times
// while many goroutines spend. Together they must get exactly the capacity.
func TestReloadsLoseNoDecisionAndNoSpending(t *testing.T) {
	const capacity, reloads = 20_000, 1000
	text := func(i int) string {
		return fmt.Sprintf("version: v%d\nrules:\n- {name: extra%d, limit: unlimited}\n- {name: api, limit: fixed-window %d/h}\n", i, i%3, capacity)
	}
	p, _, _ := inForce(t, text(0))
	plain, err := policy.New(p.Current(), nil)
	require.NoError(t, err)
	var admitted atomic.Int64
	var stop atomic.Bool
	var wg sync.WaitGroup
	for range 8 {
		wg.Go(func() {
			for !stop.Load() {
				d, err := plain.Take(context.Background(), attrs{}, 1)
				if err != nil || !d.Allowed && d.Limit.Name != "api" {
					t.Error(d, err)
					return
				}
				if d.Allowed {
					admitted.Add(1)
				}
			}
		})
	}
	for i := range reloads {
		require.NoError(t, plain.Update(parsed(t, text(i+1))))
	}
	assert.Eventually(t, func() bool { return admitted.Load() >= capacity || t.Failed() }, time.Minute, time.Millisecond)
	stop.Store(true)
	wg.Wait()
	assert.Equal(t, int64(capacity), admitted.Load())
	assert.Equal(t, uint64(reloads+1), plain.Stats().Generation)
}

func TestAnEngineThatFailsToOpenChangesNothing(t *testing.T) {
	down := errors.New("no such store")
	var refused error
	inner := policy.Memory(nil)
	engine := func(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		l, err := inner(b, before)
		return l, errors.Join(err, refused)
	}
	p, err := policy.New(parsed(t, "version: v1\nrules:\n- {name: a, limit: fixed-window 1/h}"), &policy.Options{Engine: engine})
	require.NoError(t, err)
	refused = down
	require.ErrorIs(t, p.Update(parsed(t, "version: v2\nrules: [{name: b, limit: blocked}]")), down)
	assert.Equal(t, "v1", p.Stats().Version)
	assert.True(t, p.Allow(attrs{}, 1))
	assert.False(t, p.Allow(attrs{}, 1))
}

func TestAnErrorAboutARequestIsOneText(t *testing.T) {
	p, err := policy.New(parsed(t, "rules: [{name: api, key: user, limit: fixed-window 1/h, cost: weight}]"), nil)
	require.NoError(t, err)
	_, err = p.Take(t.Context(), attrs{}, 1)
	assert.EqualError(t, err, `policy: rule "api": the request has no "user"`)
	assert.ErrorIs(t, err, keyfunc.ErrNoKey)
	_, err = p.Take(t.Context(), attrs{"user": "ann", "weight": "x"}, 1)
	assert.EqualError(t, err, `policy: rule "api": "weight" is not a whole number of at least 0`)
	assert.ErrorIs(t, err, keyfunc.ErrMisconfigured)
}

func TestACostOfAWrongFormIsTheFaultOfItsSource(t *testing.T) {
	for attribute, want := range map[string]struct {
		err     error
		outcome outcome.Outcome
		status  int
	}{
		"tokens":        {keyfunc.ErrMisconfigured, outcome.Failed, http.StatusInternalServerError},
		"header:X-Size": {keyfunc.ErrMalformedKey, outcome.Rejected, http.StatusBadRequest},
	} {
		p, _, decisions := inForce(t, "rules: [{name: api, limit: fixed-window 9/h, cost: "+attribute+"}]")
		limit, err := httplimit.New(ratelimit.Map(p, func(r *http.Request) (policy.Request, error) {
			return policy.HTTP(r, policy.Attributes{"tokens": r.Header.Get("X-Size")}), nil
		}), &httplimit.Options{Logger: slog.New(slog.DiscardHandler)})
		require.NoError(t, err)
		for _, wrong := range []string{"1.5", "-1", strings.Repeat("1", 1025)} {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("X-Size", wrong)
			w := httptest.NewRecorder()
			limit.Wrap(http.NotFoundHandler()).ServeHTTP(w, r)
			assert.Equal(t, want.status, w.Code, attribute)
			last := (*decisions)[len(*decisions)-1]
			require.ErrorIs(t, last.Err, want.err, attribute)
			assert.Equal(t, want.outcome, outcome.Of(last.Decision, last.Err), attribute)
		}
		assert.Equal(t, 9, ruleLeft(t, p, "api"), "nothing is charged")
	}
}
