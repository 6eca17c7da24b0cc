package policy_test

import (
	"encoding/json"
	"net/http/httptest"
	"os"
	"strconv"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.yaml.in/yaml/v4"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// made returns a file's policies, with budgets in memory, and their clock.
func made(t *testing.T, text string) (*policy.Policies, *ratelimittest.Clock) {
	t.Helper()
	set, err := policy.Parse([]byte(text))
	require.NoError(t, err)
	clock := new(ratelimittest.Clock)
	return ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})), clock
}

// remaining returns the remaining budget of each rule for a request.
func remaining(t *testing.T, p *policy.Policies, r policy.Request) map[string]int {
	t.Helper()
	ex, err := p.Explain(r, 1)
	require.NoError(t, err)
	left := map[string]int{}
	for _, rule := range ex.Rules {
		left[rule.Rule] = rule.Decision.Remaining
	}
	return left
}

func TestARouteHasACostOfItsOwnInOneBudget(t *testing.T) {
	p, _ := made(t, `rules:
- name: api
  key: user
  limit: fixed-window 1000/h
  costs:
  - {match: {route: ["POST /v1/export"]}, cost: 20}
  - {match: {route: [/v1/search/], attributes: {deep: "yes"}}, cost: weight}
  - {match: {route: [/v1/search/]}, cost: 5}
  - {match: {attributes: {deep: free}}, cost: ""}
`)
	left := 1000
	for _, each := range []struct {
		r            policy.Attributes
		caller, cost int
	}{
		{attrs{"method": "POST", "path": "/v1/export"}, 1, 20},
		{attrs{"method": "POST", "path": "/v1/export"}, 7, 20},
		{attrs{"method": "GET", "path": "/v1/export"}, 1, 1},
		{attrs{"method": "GET", "path": "/v1/search/a"}, 1, 5},
		{attrs{"method": "GET", "path": "/v1/search/a", "deep": "yes", "weight": "9"}, 1, 9},
		{attrs{"method": "GET", "path": "/v1/search/a", "deep": "yes", "weight": "0"}, 1, 0},
		{attrs{"method": "GET", "path": "/", "deep": "free"}, 3, 3},
		{attrs{"method": "GET", "path": "/"}, 3, 3},
		{attrs{"method": "POST", "path": "/v1/export"}, 0, 0},
	} {
		each.r["user"] = "ann"
		d, err := p.Take(t.Context(), each.r, each.caller)
		require.NoError(t, err)
		require.True(t, d.Allowed)
		left -= each.cost
		require.Equal(t, left, remaining(t, p, attrs{"user": "ann"})["api"], "after %v", each.r)
	}
	_, err := p.Take(t.Context(), attrs{"user": "ann", "path": "/v1/search/a", "deep": "yes"}, 1)
	require.ErrorIs(t, err, keyfunc.ErrNoKey, "an attribute of the cost is missing")
	_, err = p.Take(t.Context(), attrs{"user": "ann", "path": "/v1/search/a", "deep": "yes", "weight": "-1"}, 1)
	require.ErrorIs(t, err, keyfunc.ErrMisconfigured)
}

// Servers may read a path in several ways. Such a path costs as much as its most expensive reading.
func TestAClientCannotChooseALowerCostByTheSpellingOfAPath(t *testing.T) {
	p, _ := made(t, `rules:
- {name: api, limit: fixed-window 1000/h, cost: 2, costs: [{match: {route: [/cheap/]}, cost: 1}, {match: {route: [/dear/]}, cost: 50}]}
`)
	for path, cost := range map[string]int{"/cheap/x": 1, "/dear/x": 50, "/other": 2, "/cheap/../dear/x": 50, "/cheap/..%2Fdear/x": 50, "/cheap/../x": 2, "/x/../cheap/x": 2} {
		ex, err := p.Explain(policy.HTTP(httptest.NewRequest("GET", path, nil), nil), 1)
		require.NoError(t, err)
		assert.Equal(t, cost, ex.Rules[0].Cost, path)
	}
}

func TestTokensAndDollarsOfOneCallSettleEachToTheirOwnFigure(t *testing.T) {
	text, err := os.ReadFile("examples/litellm.yaml")
	require.NoError(t, err)
	set, warnings := policy.Check(text)
	require.NotNil(t, set, "%v", warnings)
	require.Empty(t, warnings)
	for name, c := range map[string]struct {
		tokens, dollars         string // the real figures
		cancel                  bool
		err                     error
		requests, left, dollar6 int // the remaining requests, tokens and millionths of a dollar
	}{
		"below the estimates": {tokens: "500", dollars: "7000", requests: 59, left: 99_500, dollar6: 49_993_000},
		"above the estimates": {tokens: "12000", dollars: "200000", requests: 59, left: 88_000, dollar6: 49_800_000},
		"cancelled":           {cancel: true, requests: 60, left: 100_000, dollar6: 50_000_000},
		// the tokens' estimate stays, and the other rule is settled
		"without the tokens":   {dollars: "0", err: keyfunc.ErrNoKey, requests: 59, left: 96_000, dollar6: 50_000_000},
		"tokens that are none": {tokens: "many", dollars: "1000", err: keyfunc.ErrMisconfigured, requests: 59, left: 96_000, dollar6: 49_999_000},
	} {
		t.Run(name, func(t *testing.T) {
			p := ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: new(ratelimittest.Clock)})}))
			r := attrs{"api_key": "k", "team": "t", "estimated_tokens": "4000", "estimated_microdollars": "90000"}
			res, err := p.Reserve(t.Context(), r, 1, 0)
			require.NoError(t, err)
			require.True(t, res.Allowed)
			assert.Equal(t, map[string]int{"requests": 59, "tokens": 96_000, "spend": 49_910_000}, remaining(t, p, r))
			r["total_tokens"], r["microdollars"] = c.tokens, c.dollars
			if c.cancel {
				require.NoError(t, res.Cancel())
			} else {
				require.ErrorIs(t, res.Settle(1), c.err)
			}
			assert.Equal(t, map[string]int{"requests": c.requests, "tokens": c.left, "spend": c.dollar6}, remaining(t, p, r))
		})
	}
}

func TestARuleWithoutACostSettlesAtItsAttributeOrAtTheArgument(t *testing.T) {
	for _, more := range []string{"", "  key: user\n  share: 1\n"} {
		p, _ := made(t, "rules:\n- name: tokens\n  limit: token-bucket 1/h burst 1000\n  actual: tokens\n"+more)
		r := attrs{"user": "ann"}
		left := 1000
		for _, each := range []struct {
			tokens      string
			given, real int
		}{{"30", 200, 30}, {"", 200, 200}, {"0", 200, 0}, {"300", 1, 300}, {"30", 0, 0}} {
			res, err := p.Reserve(t.Context(), r, 100, 0)
			require.NoError(t, err)
			require.True(t, res.Allowed)
			if each.tokens != "" {
				r["tokens"] = each.tokens
			} else {
				delete(r, "tokens")
			}
			require.NoError(t, res.Settle(each.given))
			left -= each.real
			require.Equal(t, left, remaining(t, p, r)["tokens"], "%+v", each)
		}
	}
}

// A rule without a cost is charged the caller's cost, and settles at the argument. A route's price stays.
func TestACostOfARouteIsNotSettled(t *testing.T) {
	p, _ := made(t, `rules:
- {name: api, limit: fixed-window 1000/h, costs: [{match: {route: [/export]}, cost: 20}]}
`)
	left := 1000
	for _, each := range []struct {
		path        string
		given, real int
	}{{"/export", 7, 20}, {"/", 7, 7}, {"/export", 0, 0}, {"/", 0, 0}} {
		res, err := p.Reserve(t.Context(), attrs{"path": each.path}, 10, 0)
		require.NoError(t, err)
		require.NoError(t, res.Settle(each.given))
		left -= each.real
		require.Equal(t, left, remaining(t, p, attrs{})["api"], "%+v", each)
	}
}

func TestCostsAndActualAreCheckedWithTheirFields(t *testing.T) {
	for text, fault := range map[string]string{
		"costs: [{match: {route: /a}}]":                     `rule "api": rules[0].costs[0].cost: the cost is missing`,
		"costs: [{cost: 2}]":                                "rules[0].costs[0].match: it matches every request",
		"costs: [{match: {route: a}, cost: 2}]":             "rules[0].costs[0].match.route[0]",
		"costs: [{match: {attributes: {a b: c}}, cost: 2}]": "rules[0].costs[0].match.attributes",
		"costs: [{match: {absent: []}, cost: 2}]":           "rules[0].costs[0].match.absent: an empty list",
		"costs: [{match: {not: {route: []}}, cost: 2}]":     "rules[0].costs[0].match.not.route: an empty list",
		"costs: [{match: {route: /a}, cost: 0}]":            "rules[0].costs[0].cost: 0, want at least 1",
		"costs: [{match: {route: /a}, price: 2}]":           `unknown field "price"`,
		"costs: []":               "rules[0].costs: an empty list",
		"actual: header:X-Tokens": `rules[0].actual: "header:X-Tokens" is sent by the client`,
		"actual: path":            `rules[0].actual: "path" is sent by the client`,
		"actual: 7":               "rules[0].actual: 7 is a number",
	} {
		_, err := policy.Parse([]byte("rules:\n- name: api\n  limit: fixed-window 1/s\n  " + text + "\n"))
		require.ErrorContains(t, err, fault)
		require.ErrorContains(t, err, "line 4")
	}
	_, warnings := policy.Check([]byte("attributes: [user]\nrules:\n- {name: api, limit: fixed-window 9/s, actual: tokens, costs: [{match: {route: post /x, attributes: {plam: a}}, cost: 20}]}\n"))
	var fields []string
	for _, w := range warnings {
		fields = append(fields, w.Field)
	}
	assert.ElementsMatch(t, []string{"rules[0].costs[0].cost", "rules[0].actual", "rules[0].costs[0].match.route[0]", "rules[0].costs[0].match.attributes.plam"}, fields)
}

func TestCostsAndActualSurviveJSONAndYAML(t *testing.T) {
	set, err := policy.Parse([]byte("rules:\n- {name: api, limit: blocked, actual: tokens, costs: [{match: {route: [/x], not: {prefix: {a: [b]}}}, cost: 20}, {match: {absent: [a]}, cost: w}, {match: {absent: [c]}, cost: ''}]}\n"))
	require.NoError(t, err)
	for _, marshal := range []func(any) ([]byte, error){json.Marshal, yaml.Marshal} {
		data, err := marshal(set)
		require.NoError(t, err)
		again, err := policy.Parse(data)
		require.NoError(t, err, "%s", data)
		assert.Equal(t, set, again)
	}
}

func TestAnExplanationHasTheAttributeOfTheRealCost(t *testing.T) {
	p, _ := made(t, "rules:\n- {name: tokens, limit: fixed-window 9/s, cost: 2, actual: total}\n")
	ex, err := p.Explain(attrs{}, 1)
	require.NoError(t, err)
	assert.Equal(t, "total", ex.Rules[0].Actual)
	assert.Contains(t, ex.String(), "cost 2 of 9, settled at total")
}

// A Shopify app runs for an hour. No second takes more points than the bucket gives.
func TestPointsByEndpoint(t *testing.T) {
	text, err := os.ReadFile("examples/shopify.yaml")
	require.NoError(t, err)
	set, warnings := policy.Check(text)
	require.NotNil(t, set, "%v", warnings)
	require.Empty(t, warnings)
	clock := new(ratelimittest.Clock)
	p := ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})}))
	points := 0
	take := func(r policy.Attributes, cost int) {
		r["app"], r["shop"], r["method"] = "a", "s", "POST"
		if d, err := p.Take(t.Context(), r, 1); err == nil && d.Allowed {
			points += cost
		}
	}
	for second := range 3600 {
		for i := range 7 {
			take(attrs{"path": "/admin/api/graphql.json", "operation": "mutation"}, 10)
			take(attrs{"path": "/admin/api/graphql.json", "operation": "query", "requested_points": strconv.Itoa(i * 3)}, i*3)
			take(attrs{"path": "/admin/products.json"}, 1)
			take(attrs{"path": "/admin/bulk/x"}, 50)
		}
		require.LessOrEqual(t, points, 1000+50*second)
		clock.Advance(1e9)
	}
	assert.Greater(t, points, 1000+50*3590, "nothing is lost either")
}
