package policy_test

import (
	"cmp"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/internal/byhand"
)

// TestMatchesAgreeWithAPlainEvaluator draws rules with every kind of condition at random.
// It compares the rules found by the policies with the ones found by a loop over all rules.
func TestMatchesAgreeWithAPlainEvaluator(t *testing.T) {
	testsize.Arithmetic(t)
	rnd := rand.New(rand.NewPCG(25, 1))
	pick := func(words ...string) string { return words[rnd.IntN(len(words))] }
	value := func() string { return pick("a", "ab", "b", "ba", "abc", "") }
	address := func() string {
		return pick("10.0.0.1", "10.1.2.3", "192.0.2.7", "2001:db8::", "2001:db8:1::", "::ffff:10.0.0.1", "nobody")
	}
	some := func(of func() string) (list []string) {
		for range 1 + rnd.IntN(12) {
			list = append(list, of())
		}
		return list
	}
	requested := func(of func() string, ip func() string) map[string][]string {
		m := map[string][]string{}
		for range rnd.IntN(3) {
			m[pick("x", "y", "z")] = some(of)
		}
		if rnd.IntN(3) == 0 {
			m["ip"] = some(ip)
		}
		if len(m) == 0 {
			return nil
		}
		return m
	}
	network := func() string {
		return pick("10.0.0.0/8", "10.0.0.0/16", "192.0.2.0/24", "2001:db8::/32", "2001:db8:1::/48", "10.0.0.1", "nobody")
	}
	part := func() string { return pick("a", "ab", "b", "1", "::") }
	applied := 0
	for range 400 {
		set := &policy.Set{}
		for i := range 1 + rnd.IntN(30) {
			m := policy.Match{Prefix: requested(part, part), Suffix: requested(part, part)}
			if rnd.IntN(2) == 0 {
				m.Attributes = requested(value, network)
			}
			if rnd.IntN(2) == 0 {
				m.Not = requested(value, network)
			}
			if rnd.IntN(2) == 0 {
				m.Prefix, m.Suffix = nil, nil
			}
			if rnd.IntN(3) == 0 {
				m.Absent = []string{pick("x", "y", "z", "ip")}
			}
			if rnd.IntN(3) == 0 {
				m.Route = []string{pick("/", "/a/", "/{x}")}
			}
			set.Rules = append(set.Rules, policy.Rule{Name: fmt.Sprintf("r%d", i), Limit: ratelimit.Unlimited(), Match: m, Allow: false})
		}
		p, err := policy.New(set, nil)
		require.NoError(t, err)
		for range 30 {
			r := attrs{"path": pick("/", "/a/b", "/c"), "ip": address()}
			for _, name := range []string{"x", "y", "z"} {
				if rnd.IntN(3) > 0 {
					r[name] = value()
				}
			}
			if rnd.IntN(5) == 0 {
				delete(r, "ip")
			}
			var want, got []string
			for _, rule := range set.Rules {
				if applies(rule.Match, r) {
					want = append(want, rule.Name)
				}
			}
			ex, err := p.Explain(r, 1)
			require.NoError(t, err)
			for _, rule := range ex.Rules {
				got = append(got, rule.Rule)
			}
			require.Equal(t, want, got, "%v of %+v", r, set.Rules)
			applied += len(got)
		}
	}
	assert.Greater(t, applied, 10_000)
}

// applies evaluates a match without an index.
func applies(m policy.Match, r attrs) bool {
	for _, route := range m.Route {
		mux := http.NewServeMux()
		mux.Handle(route, http.NotFoundHandler())
		if _, pattern := mux.Handler(httptest.NewRequest("GET", r["path"], nil)); pattern == "" {
			return false
		}
	}
	among := func(name, v string, values []string) bool {
		for _, value := range values {
			if v == value {
				return true
			}
			if name == "ip" && inNetwork(value, v) {
				return true
			}
		}
		return false
	}
	for name, values := range m.Attributes {
		if v, ok := r[name]; !ok || !among(name, v, values) {
			return false
		}
	}
	for name, values := range m.Not {
		if v, ok := r[name]; ok && among(name, v, values) {
			return false
		}
	}
	for name, values := range m.Prefix {
		if v, ok := r[name]; !ok || !slices.ContainsFunc(values, func(part string) bool { return strings.HasPrefix(v, part) }) {
			return false
		}
	}
	for name, values := range m.Suffix {
		if v, ok := r[name]; !ok || !slices.ContainsFunc(values, func(part string) bool { return strings.HasSuffix(v, part) }) {
			return false
		}
	}
	for _, name := range m.Absent {
		if r[name] != "" {
			return false
		}
	}
	return true
}

func TestAnExemptionWinsOverEveryRule(t *testing.T) {
	p, _, decisions := inForce(t, `
rules:
- {name: strict, key: user, limit: blocked}
- {name: health, allow: true, match: {prefix: {path: /health}}}
- {name: office, allow: true, match: {attributes: {ip: [192.0.2.0/24]}}, disabled: true}
`)
	assert.True(t, p.Allow(attrs{"path": "/healthz"}, 5), "although it lacks the key of another rule")
	d, err := p.Take(t.Context(), attrs{"path": "/health", "user": "ann"}, 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	require.NoError(t, p.Wait(t.Context(), attrs{"path": "/health"}, 1))
	_, err = p.Take(t.Context(), attrs{"path": "/v1", "user": "ann", "ip": "192.0.2.1"}, 1)
	require.ErrorIs(t, err, ratelimit.ErrBlocked, "a disabled exemption exempts nobody")
	_, err = p.Take(t.Context(), attrs{"path": "/v1"}, 1)
	require.ErrorIs(t, err, keyfunc.ErrNoKey)
	assert.EqualValues(t, 3, p.Stats().Exempt)
	require.Len(t, (*decisions)[0].Rules, 1)
	assert.Equal(t, "health", (*decisions)[0].Rules[0].Rule)
	ex, err := p.Explain(attrs{"path": "/health"}, 1)
	require.NoError(t, err)
	assert.Equal(t, "health", ex.Exempt)
	assert.NoError(t, ex.Err)
}

func TestAKeyOfIPv4Networks(t *testing.T) {
	p, _, _ := inForce(t, "rules:\n- {name: a, key: [ip/24], limit: fixed-window 1/h, overrides: [{key: 203.0.113.0/24, limit: fixed-window 2/h}]}")
	for _, test := range []struct {
		ip   string
		want bool
	}{
		{"192.0.2.1", true},
		{"192.0.2.200", false},
		{"::ffff:192.0.2.3", false},
		{"192.0.3.1", true},
		{"2001:db8::", true},
		{"2001:db8:1::", true},
		{"2001:db8::", false},
		{"203.0.113.9", true},
		{"203.0.113.10", true},
		{"203.0.113.11", false},
	} {
		assert.Equal(t, test.want, p.Allow(attrs{"ip": test.ip}, 1), test.ip)
	}
	_, err := p.Take(t.Context(), attrs{"ip": "nobody"}, 1)
	require.ErrorIs(t, err, keyfunc.ErrMalformedKey)
	_, err = p.Take(t.Context(), attrs{}, 1)
	require.ErrorIs(t, err, keyfunc.ErrNoKey)
}

func TestInvalidMatchesAreErrors(t *testing.T) {
	for text, fault := range map[string]string{
		rule("  match: {attributes: {ip: [10.0.0.1/8]}}\n"):                        "bits are set behind the first 8: the network is 10.0.0.0/8",
		rule("  match: {not: {ip: [10.0.0.0/33]}}\n"):                              "not a network",
		rule("  match: {prefix: {path: \"\"}}\n"):                                  "every value begins and ends with",
		rule("  match: {suffix: {path: []}}\n"):                                    "an empty list",
		rule("  allow: true\n"):                                                    "the rule allows the requests that it matches",
		rule("  key: ip/24\n  overrides: [{key: 192.0.2.0/25, limit: blocked}]\n"): "a network of 25 bits, want 24",
		"defaults: {limit: often}\nrules: []\n":                                    "defaults.limit",
		"defaults: {key: [a, a]}\nrules:\n- {name: x, limit: blocked}\n":           `"a" is there twice`,
		"defaults: {optional: true}\nrules: []\n":                                  `unknown field "optional"`,
		"rules:\n- {name: x, allow: true, plans: {a: blocked}}\n":                  "the rule allows the requests that it matches",
	} {
		_, err := policy.Parse([]byte(text))
		require.ErrorAs(t, err, new(*policy.Error), text)
		assert.ErrorContains(t, err, fault, text)
	}
}

func TestDefaultsFillOmittedFields(t *testing.T) {
	p, _, _ := inForce(t, `
defaults: {match: {route: /v1/}, key: user, limit: fixed-window 5/h, plans: {pro: fixed-window 50/h}, cost: 2}
rules:
- {name: all}
- {name: own, match: {route: /v2/}, key: tenant, limit: fixed-window 7/h, plans: {}, cost: 1}
- {name: callers, match: {route: /v3/}, plans: {}, cost: ""}
- {name: probes, allow: true, match: {route: /v1/health}}
`)
	remaining := func(r attrs) (left []int) {
		ex, err := p.Explain(r, 4)
		require.NoError(t, err)
		for _, e := range ex.Rules {
			left = append(left, e.Decision.Remaining, e.Cost)
		}
		return left
	}
	assert.Equal(t, []int{5, 2}, remaining(attrs{"path": "/v1/a", "user": "ann"}))
	assert.Equal(t, []int{50, 2}, remaining(attrs{"path": "/v1/a", "user": "ann", "plan": "pro"}))
	assert.Equal(t, []int{7, 1}, remaining(attrs{"path": "/v2/a", "tenant": "acme", "plan": "pro"}))
	assert.Equal(t, []int{5, 4}, remaining(attrs{"path": "/v3/a", "user": "ann", "plan": "pro"}), "the caller's cost")
	assert.True(t, p.Allow(attrs{"path": "/v1/health"}, 1))
	assert.Equal(t, []string{"tenant"}, complete(p.Current())[1].Key)
	assert.Nil(t, p.Current().Rules[0].Key, "the set itself stays as it was given")
}

// TestAnEmptyFieldIsNotOmitted checks files, and sets written and read again.
func TestAnEmptyFieldIsNotOmitted(t *testing.T) {
	set := parsed(t, `
defaults: {match: {route: /v1/}, key: user, limit: fixed-window 5/h, plans: {pro: fixed-window 50/h}, cost: 3}
rules:
- {name: everywhere, match: {}}
- {name: together, key: [], plans: {}, cost: ""}
`)
	written, err := json.Marshal(set)
	require.NoError(t, err)
	asYAML, err := yaml.Marshal(set)
	require.NoError(t, err)
	for _, text := range []string{string(written), string(asYAML)} {
		assert.Equal(t, complete(set), complete(parsed(t, text)), text)
	}
	p, err := policy.New(set, nil)
	require.NoError(t, err)
	met := func(r attrs) (rules []string) {
		ex, err := p.Explain(r, 1)
		require.NoError(t, err)
		for _, e := range ex.Rules {
			rules = append(rules, e.Rule+" "+e.Key+" "+e.Limit.Named("").String()+" "+strconv.Itoa(e.Cost))
		}
		return rules
	}
	assert.Equal(t, []string{"everywhere ann fixed-window 50/h 3"}, met(attrs{"path": "/v2/a", "user": "ann", "plan": "pro"}))
	assert.Equal(t, []string{"everywhere ann fixed-window 50/h 3", "together  fixed-window 5/h 1"}, met(attrs{"path": "/v1/a", "user": "ann", "plan": "pro"}))
}

// TestWrongDefaultsAreReportedOnce checks that wrong defaults are
// reported where they stand, whether or not a rule inherits them.
func TestWrongDefaultsAreReportedOnce(t *testing.T) {
	for defaults, fault := range map[string]string{
		"match: {route: [/a, 'b {']}":           "line 1: defaults.match.route[1]: ",
		"match: {attributes: {ip: 10.0.0.1/8}}": "line 1: defaults.match.attributes.ip[0]: ",
		"match: {absent: []}":                   "line 1: defaults.match.absent: ",
		"key: [a, a]":                           "line 1: defaults.key[1]: ",
		"plans: {'': blocked}":                  "line 1: defaults.plans: ",
		"key: ip/0":                             `line 1: defaults.key[0]: "ip/0", want ip/1 to ip/32`,
	} {
		for _, rules := range []string{"[]", "[{name: a, limit: blocked}, {name: b, limit: blocked}]"} {
			_, errs := policy.Check([]byte("defaults: {" + defaults + "}\nrules: " + rules))
			if assert.Len(t, errs, 1, defaults) {
				assert.ErrorContains(t, errs[0], fault)
				assert.Equal(t, 1, errs[0].Line)
				assert.Greater(t, errs[0].Column, 1)
			}
		}
	}
	_, errs := policy.Check([]byte("defaults: {key: [a, a]}\nrules: [{name: a, limit: blocked, key: [b, b]}]"))
	require.Len(t, errs, 2, "a rule's own")
	assert.ErrorContains(t, errs[1], "rules[0].key[1]")
}

// TestAnAddressIsTheSameHoweverItIsSpelt uses different spellings in a rule and in a request.
func TestAnAddressIsTheSameHoweverItIsSpelt(t *testing.T) {
	p, _, _ := inForce(t, `
rules:
- {name: in, match: {attributes: {ip: ["2001:DB8:0::5", "::ffff:192.0.2.7", 198.51.100.1, local]}}, limit: fixed-window 1/h}
- {name: wide, match: {attributes: {ip: ["2001:db8::5/128", 192.0.2.7/32, 198.51.100.1/32]}}, limit: fixed-window 1/h}
- {name: out, match: {not: {ip: ["2001:DB8:0::5", "::ffff:192.0.2.7", 198.51.100.1, local]}}, limit: fixed-window 1/h}
`)
	for ip, want := range map[string][]string{
		"2001:db8::5": {"in", "wide"}, "2001:0db8:0:0::5": {"in", "wide"}, "192.0.2.7": {"in", "wide"}, "::ffff:192.0.2.7": {"in", "wide"},
		"::ffff:c633:6401": {"in", "wide"}, "local": {"in"}, "2001:db8::5%eth0": {"in", "wide"}, "2001:db8::6": {"out"}, "192.0.2.8": {"out"}, "Local": {"out"}, "": {"out"},
	} {
		ex, err := p.Explain(attrs{"ip": ip}, 1)
		require.NoError(t, err)
		var rules []string
		for _, e := range ex.Rules {
			rules = append(rules, e.Rule)
		}
		assert.Equal(t, want, rules, ip)
	}
}

// TestTheRouteOfAMuxThatHasNotRunYet limits by route in front of the mux.
func TestTheRouteOfAMuxThatHasNotRunYet(t *testing.T) {
	mux := http.NewServeMux()
	served := http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusNoContent) })
	mux.Handle("GET /v1/charges/{id}", served)
	mux.Handle("POST /v1/charges", served)
	p, err := policy.New(parsed(t, "rules:\n- {name: a, key: route, limit: fixed-window 2/h}"), nil)
	require.NoError(t, err)
	limit, err := httplimit.New(ratelimit.Map(p, func(r *http.Request) (policy.Request, error) {
		_, route := mux.Handler(r)
		return policy.HTTP(r, policy.Attributes{"route": cmp.Or(route, "none")}), nil
	}), nil)
	require.NoError(t, err)
	handler := limit.Wrap(mux)
	for _, test := range []struct {
		method, path string
		status       int
	}{
		{"GET", "/v1/charges/1", 204}, {"GET", "/v1/charges/2", 204}, {"GET", "/v1/charges/3", 429},
		{"HEAD", "/v1/charges/3", 429}, {"POST", "/v1/charges", 204},
		{"GET", "/nowhere", 404}, {"GET", "/else", 404}, {"PUT", "/v1/charges", 429},
	} {
		w := httptest.NewRecorder()
		handler.ServeHTTP(w, httptest.NewRequest(test.method, test.path, nil))
		assert.Equal(t, test.status, w.Code, "%s %s", test.method, test.path)
	}
}

// TestPatternsThatCrossAreRefused combines wildcards and words in all
// ways. A request would have to be looked up in thousands of places.
func TestPatternsThatCrossAreRefused(t *testing.T) {
	crossing := func(depth int) *policy.Set {
		set := &policy.Set{}
		for i := range 1 << depth {
			var path strings.Builder
			for bit := range depth {
				if i>>bit&1 == 0 {
					path.WriteString("/a")
				} else {
					fmt.Fprintf(&path, "/{w%d}", bit)
				}
			}
			set.Rules = append(set.Rules, policy.Rule{Name: fmt.Sprintf("r%d", i), Limit: ratelimit.Blocked(), Match: policy.Match{Route: []string{path.String()}}})
		}
		return set
	}
	require.NoError(t, byhand.Validate(crossing(8)))
	err := byhand.Validate(crossing(13))
	require.ErrorAs(t, err, new(*policy.Error))
	assert.ErrorContains(t, err, "the patterns of the routes cross each other")
	many := &policy.Set{}
	for i := range 10_000 { // a large service without such patterns
		many.Rules = append(many.Rules, policy.Rule{Name: fmt.Sprintf("r%d", i), Limit: ratelimit.Blocked(), Match: policy.Match{Route: []string{fmt.Sprintf("GET /v%d/things%d/{id}/parts/{part}", i%7, i)}}})
	}
	require.NoError(t, byhand.Validate(many))
}

// TestStatsDoNotWaitForAnUpdate reads Stats during an update delayed by an engine.
func TestStatsDoNotWaitForAnUpdate(t *testing.T) {
	hold, held := make(chan struct{}), make(chan struct{})
	opening, memory := func() {}, policy.Memory(nil)
	e := func(b policy.Budget, before ratelimit.Limiter[string]) (ratelimit.Limiter[string], error) {
		opening()
		return memory(b, before)
	}
	p, err := policy.New(parsed(t, "version: v1\nrules:\n- {name: a, limit: blocked}"), &policy.Options{Engine: e})
	require.NoError(t, err)
	opening = func() { close(held); <-hold }
	var wg sync.WaitGroup
	wg.Go(func() { assert.NoError(t, p.Update(parsed(t, "version: v2\nrules:\n- {name: a, limit: unlimited}"))) })
	<-held
	done := make(chan string)
	go func() { done <- p.Stats().Version }()
	select {
	case version := <-done:
		assert.Equal(t, "v1", version)
	case <-time.After(20 * time.Second):
		t.Error("Stats waits")
	}
	close(hold)
	wg.Wait()
	assert.Equal(t, "v2", p.Stats().Version)
}

// complete returns a set's rules with their defaults.
func complete(set *policy.Set) []policy.Rule { return byhand.Complete(set).([]policy.Rule) }
