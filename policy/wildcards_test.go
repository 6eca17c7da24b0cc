package policy_test

import (
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
)

func TestABudgetForEachTextOfAWildcard(t *testing.T) {
	set, found := policy.Check([]byte(`
attributes: [user]
rules:
- name: user
  match: {route: ["/users/{id}/", "POST /v2/users/{id}", "/users/me/{id}"]}
  key: [wildcard:id]
  limit: fixed-window 2/h
- name: files
  match: {route: "/files/{bucket}/{path...}", not: {wildcard:bucket: [free]}}
  key: [user, wildcard:path]
  limit: fixed-window 1/h
  optional: true
- name: orders
  match: {route: "POST /orders/{n}/{what}", attributes: {wildcard:what: [pay]}}
  limit: fixed-window 10/h
  cost: wildcard:n
  costs: [{match: {attributes: {wildcard:n: ["0"]}}, cost: 5}, {match: {route: "/orders/7/{x}", attributes: {wildcard:x: pay}}, cost: 3}]
`))
	require.NotNil(t, set, "%v", found)
	assert.Empty(t, found)
	p := ratelimit.Must(policy.New(set, nil))
	take := func(method, url string) (ratelimit.Decision, error) {
		return p.Take(t.Context(), policy.HTTP(httptest.NewRequest(method, url, nil), policy.Attributes{"user": "ann"}), 1)
	}
	for _, row := range []struct {
		method, url string
		allowed     bool
		left        int // what the rule orders has left
	}{
		{"GET", "/users/1/", true, 10},
		{"GET", "/users/%31/x/y", true, 10},
		{"GET", "/users/1/x", false, 10},
		{"POST", "/v2/users/1", false, 10},
		{"GET", "/v2/users/1", true, 10}, // no rule matches
		{"GET", "/users/2/", true, 10},
		{"GET", "/users/me/3", true, 10}, // as in a mux, the text is 3; the budget of the key me stays
		{"GET", "/users/me/3", true, 10},
		{"GET", "/users/3/", false, 10},
		{"GET", "/users/me/", true, 10},
		{"GET", "/files/a/x/y", true, 10},
		{"GET", "/files/b/x/y", false, 10},
		{"GET", "/files/b/x%2Fz", true, 10},
		{"GET", "/files/b/x/z", false, 10},
		{"GET", "/files/free/x/y", true, 10},
		{"GET", "/files/a/", true, 10}, // the text may be empty
		{"POST", "/orders/4/pay", true, 6},
		{"POST", "/orders/0/pay", true, 1},
		{"POST", "/orders/4/show", true, 1},
		{"POST", "/orders/7/pay", false, 1},
	} {
		d, err := take(row.method, row.url)
		require.NoError(t, err)
		assert.Equal(t, row.allowed, d.Allowed, "%s %s", row.method, row.url)
		orders, err := p.Peek(t.Context(), policy.Subject{Rule: "orders"}, 0)
		require.NoError(t, err)
		assert.Equal(t, row.left, orders.Remaining, "%s %s", row.method, row.url)
	}
	_, err := take("POST", "/orders/many/pay")
	require.ErrorIs(t, err, keyfunc.ErrMalformedKey, "a client has sent it")
	for url, s := range map[string]policy.Subject{"/orders/7/pay": {Rule: "orders"}, "/users/1/": {Rule: "user", Key: []string{"1"}}} {
		require.NoError(t, p.Reset(t.Context(), s))
		d, err := take("POST", url)
		require.NoError(t, err)
		assert.True(t, d.Allowed, url)
	}
	d, err := p.Peek(t.Context(), policy.Subject{Rule: "orders"}, 0)
	require.NoError(t, err)
	assert.Equal(t, 7, d.Remaining)
}

// A mux and a rule agree on a wildcard's text, even if the mux is behind the limiter.
func TestARuleAndAMuxAgreeOnAWildcard(t *testing.T) {
	set, err := policy.Parse([]byte("rules:\n- {name: a, match: {route: '/r/{repo}/{file...}'}, key: [wildcard:repo, wildcard:file], limit: fixed-window 1/h}\n"))
	require.NoError(t, err)
	var seen [2]string
	p := ratelimit.Must(policy.New(set, &policy.Options{OnDecision: func(d policy.Decision) {
		copy(seen[:], policy.ValuesOf(d.Rules[0].Key, 2))
	}}))
	mux := http.NewServeMux()
	mux.HandleFunc("/r/{repo}/{file...}", func(_ http.ResponseWriter, r *http.Request) {
		_, err := p.Take(r.Context(), policy.HTTP(r, nil), 1)
		require.NoError(t, err)
		assert.Equal(t, [2]string{r.PathValue("repo"), r.PathValue("file")}, seen, r.URL)
	})
	for _, url := range []string{"/r/a/b", "/r/group%2Fname/b/c", "/r/%C3%A4/b%20c", "/r/a/b%2F", "/r/a%2Bb/c+d/"} {
		seen = [2]string{}
		mux.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, url, nil))
		assert.NotEmpty(t, seen[0])
	}
}

func TestAWildcardThatARouteLacksIsAnError(t *testing.T) {
	for rule, want := range map[string]string{
		"key: wildcard:id": `rules[0].key[0]: the wildcard {id}, and the rule has no route: want one such as "/users/{id}/" in match.route`,
		"match: {route: '/a/{it}'}, key: [wildcard:id]":                                  `rules[0].key[0]: the wildcard {id}, which the route "/a/{it}" does not have: want it in each route of the rule`,
		"match: {route: ['/a/{id}', '/b/{id}/', '/c/']}, key: [user, wildcard:id]":       `rules[0].key[1]: the wildcard {id}, which the route "/c/" does not have`,
		"match: {route: '/a/{id}', attributes: {wildcard:it: x}}":                        `rules[0].match.attributes.wildcard:it: the wildcard {it}`,
		"match: {route: '/a/{id}', not: {prefix: {wildcard:it: x}}}":                     `rules[0].match.not.prefix.wildcard:it: the wildcard {it}`,
		"match: {route: '/a/{id}', absent: [wildcard:it]}":                               `rules[0].match.absent[0]: the wildcard {it}`,
		"match: {route: '/a/{id}'}, cost: wildcard:it":                                   `rules[0].cost: the wildcard {it}`,
		"match: {route: '/a/{id}'}, costs: [{match: {route: /a/b}, cost: wildcard:id}]":  `rules[0].costs[0].cost: the wildcard {id}, which the route "/a/b" does not have`,
		"match: {route: '/a/{id}'}, limit_from: wildcard:id":                             `"wildcard:id" is sent by the client`,
		"match: {route: '/a/{id}'}, actual: wildcard:id":                                 `"wildcard:id" is sent by the client`,
		"match: {route: '/a/{id}'}, key: 'wildcard:'":                                    `the attribute "wildcard:" has no name behind the colon`,
		"match: {route: '/a/{id}', not: {route: '/a/{other}'}}, key: ['wildcard:other']": `which the route "/a/{id}" does not have`,
	} {
		_, err := policy.Parse([]byte("rules:\n- {name: a, limit: blocked, " + rule + "}\n"))
		require.ErrorContains(t, err, want, rule)
	}
	_, err := policy.Parse([]byte("defaults: {key: wildcard:id}\nrules:\n- {name: a, limit: blocked, match: {route: '/a/{id}'}}\n- {name: b, limit: blocked, match: {route: '/b/'}}\n"))
	require.ErrorContains(t, err, `rule "b": rules[1].key[0]: the wildcard {id}, which the route "/b/" does not have`)
	set, found := policy.Check([]byte("rules:\n- {name: a, limit: blocked, match: {route: '/a/{p...}'}, key: wildcard:p}\n"))
	require.NotNil(t, set)
	require.Len(t, found, 1)
	assert.ErrorContains(t, found[0], "key[0]: the wildcard {p...} may stand for nothing: such a request is refused, unless the rule is optional")
}

// A rule that exempts needs the text in each reading of a path. A rule that limits needs it in one.
func TestNoSpellingOfAPathChoosesAnotherWildcard(t *testing.T) {
	set, err := policy.Parse([]byte(`
rules:
- {name: free, allow: true, match: {route: "/files/{name}/", attributes: {wildcard:name: [public]}}}
- {name: secret, match: {route: "/files/{name}/", attributes: {wildcard:name: [secret]}}, limit: blocked}
- {name: all, limit: blocked, match: {prefix: {path: /files}}}
`))
	require.NoError(t, err)
	p := ratelimit.Must(policy.New(set, nil))
	for path, allowed := range map[string]bool{
		"/files/public/": true, "/files/%70ublic/": true, "/files/public/x": true, "/files/public%2Fx/": false, "/files/secret/": false, "/files/secret%2F..%2Fpublic/": false,
	} {
		assert.Equal(t, allowed, p.Allow(attrs{"path": path}, 1), path)
	}
	ex, err := p.Explain(attrs{"path": "/files/secret%2Fx/"}, 1)
	require.NoError(t, err)
	require.NotEmpty(t, ex.Rules)
	assert.Equal(t, "secret", ex.Rules[0].Rule)
}
