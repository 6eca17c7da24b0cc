package policy_test

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

func request(p *policy.Policies, method, path string, more ...string) bool {
	r := policy.Attributes{"method": method, "path": path, "user": "ann"}
	for i := 0; i < len(more); i += 2 {
		r[more[i]] = more[i+1]
	}
	return p.Allow(r, 1)
}

// Most often, one route of an API needs a limit of its own.
func TestARouteHasAnotherLimitInstead(t *testing.T) {
	for name, rules := range map[string]string{
		"not": `
- {name: api, match: {route: /api/, not: {route: ["POST /api/bulk/"]}}, key: user, limit: fixed-window 100/h}
- {name: bulk, match: {route: "POST /api/bulk/"}, key: user, limit: fixed-window 1000/h}`,
		"instead": `
- {name: bulk, match: {route: "POST /api/bulk/"}, key: user, limit: fixed-window 1000/h, instead: [API]}
- {name: api, match: {route: /api/}, key: user, limit: fixed-window 100/h}`,
	} {
		t.Run(name, func(t *testing.T) {
			p := inForceOf(t, rules)
			passed := map[string]int{}
			for i := range 1500 {
				if request(p, "POST", fmt.Sprint("/api/bulk/", i)) {
					passed["bulk"]++
				}
				if request(p, "GET", fmt.Sprint("/api/bulk/", i)) {
					passed["read"]++
				}
			}
			assert.Equal(t, map[string]int{"bulk": 1000, "read": 100}, passed)
			assert.False(t, request(p, "POST", "/api/x/..%2Fbulk/1"), "a server that does not clean its paths serves this by another route: both rules apply")
		})
	}
}

func TestPrefixSuffixAndNetworksHoldUnderNot(t *testing.T) {
	p := inForceOf(t, `
- name: all
  match: {not: {prefix: {path: [/internal/, "/a%20b/"]}, suffix: {host: .corp}, ip: [10.0.0.0/8, "2001:db8::/32"], route: [HEAD /, /status]}}
  limit: blocked`)
	for _, r := range []policy.Attributes{
		{"path": "/internal/x"}, {"path": "//internal/x"}, {"path": "/a b/"}, {"path": "/a%20b/x"}, {"path": "/x", "host": "git.CORP"},
		{"path": "/x", "ip": "10.1.2.3"}, {"ip": "2001:db8:1::"}, {"path": "/x", "method": "HEAD"}, {"path": "/status"},
	} {
		assert.True(t, p.Allow(r, 1), "%v", r)
	}
	for _, r := range []policy.Attributes{
		{}, {"path": "/internal"}, {"path": "/x", "host": "corp"}, {"ip": "11.0.0.1", "path": "/x"}, {"path": "/x", "method": "GET"}, {"path": "/status/", "method": "GET"},
	} {
		assert.False(t, p.Allow(r, 1), "%v", r)
	}
	exempt := inForceOf(t, `
- {name: public, allow: true, match: {route: /files/, not: {route: /files/big/, prefix: {path: /files/secret/}}}}
- {name: all, limit: blocked}`)
	assert.True(t, request(exempt, "GET", "/files/a"))
	for _, path := range []string{"/files/big/a", "/files/x/..%2Fbig/a", "/files/big/%2e%2e/a", "/files/secret/a", "/files/secret/%2e%2e/a", "/files/%2e%2e/a"} {
		assert.False(t, request(exempt, "GET", path), "a rule that exempts is excepted by any reading: %s", path)
	}
}

func TestRulesTakeThePlaceOfOthers(t *testing.T) {
	const rules = `
- {name: all, limit: fixed-window 1000/h}
- {name: api, match: {route: /api/}, key: tenant, limit: fixed-window 100/h, instead: all}
- {name: bulk, match: {route: /api/bulk/}, key: user, limit: fixed-window 500/h, instead: [api]%s}`
	plain, shadow, disabled := fmt.Sprintf(rules, ""), fmt.Sprintf(rules, ", shadow: true"), fmt.Sprintf(rules, ", disabled: true")
	const optional = `
- {name: all, limit: fixed-window 1000/h}
- {name: tenants, key: tenant, optional: true, limit: fixed-window 10/h, instead: all}`
	for name, c := range map[string]struct {
		rules        string
		path, tenant string
		want         []string
	}{
		"no other rule":                             {rules: plain, path: "/x", want: []string{"all"}},
		"one rule":                                  {rules: plain, path: "/api/x", tenant: "acme", want: []string{"api"}},
		"a rule that is replaced replaces, too":     {rules: plain, path: "/api/bulk/x", want: []string{"bulk"}},
		"one that is replaced although it has keys": {rules: plain, path: "/api/bulk/x", tenant: "acme", want: []string{"bulk"}},
		"a shadow replaces nothing":                 {rules: shadow, path: "/api/bulk/x", tenant: "acme", want: []string{"api", "bulk"}},
		"a disabled rule replaces nothing":          {rules: disabled, path: "/api/bulk/x", tenant: "acme", want: []string{"api"}},
		"an optional rule":                          {rules: optional, tenant: "acme", want: []string{"tenants"}},
		"an optional rule without its key":          {rules: optional, want: []string{"all"}},
	} {
		t.Run(name, func(t *testing.T) {
			p := inForceOf(t, c.rules)
			r := policy.Attributes{"path": c.path, "user": "ann"}
			if c.tenant != "" {
				r["tenant"] = c.tenant
			}
			ex, err := p.Explain(r, 1)
			require.NoError(t, err)
			require.NoError(t, ex.Err, "a rule that does not apply needs no key")
			var applies []string
			for _, rule := range ex.Rules {
				if rule.Instead != "" {
					assert.Contains(t, ex.String(), rule.Rule+": does not apply: rule "+rule.Instead+" takes its place")
				} else if rule.Skipped == "" {
					applies = append(applies, rule.Rule)
				}
			}
			assert.Equal(t, c.want, applies)
			assert.True(t, p.Allow(r, 1))
		})
	}
}

func TestReplacementsThatCannotBeAreErrors(t *testing.T) {
	for rules, fault := range map[string]string{
		`- {name: a, limit: blocked, instead: [b]}`:                                                                                                         `rules[0].instead[0]: no rule "b"`,
		`- {name: api, limit: blocked}` + "\n" + `- {name: b, limit: blocked, instead: [apy]}`:                                                              `no rule "apy"; "api", maybe`,
		`- {name: a, limit: blocked, instead: [b, B]}` + "\n" + `- {name: b, limit: blocked}`:                                                               `rules[0].instead[1]: the rule "b" is there twice`,
		`- {name: a, limit: blocked, instead: [A]}`:                                                                                                         `the rule itself`,
		`- {name: a, limit: blocked, instead: [b]}` + "\n" + `- {name: b, limit: blocked, instead: c}` + "\n" + `- {name: c, limit: blocked, instead: [a]}`: `a cycle, in which each rule takes the place of the next: a, b, c, a`,
		`- {name: a, limit: blocked, instead: [b]}` + "\n" + `- {name: b, allow: true}`:                                                                     `exempts requests`,
		`- {name: b, allow: true, instead: [a]}` + "\n" + `- {name: a, limit: blocked}`:                                                                     `it has a match only`,
		`- {name: a, limit: blocked, match: {not: {route: [nowhere]}}}`:                                                                                     `match.not.route[0]`,
		`- {name: a, limit: blocked, match: {not: {ip: [10.0.0.1/8]}}}`:                                                                                     `match.not.ip[0]: bits are set`,
		`- {name: a, limit: blocked, match: {not: {prefix: {path: ""}}}}`:                                                                                   `match.not.prefix.path[0]: nothing`,
		`- {name: a, limit: blocked, match: {not: {prefix: {path: /a}, "prefix:path": /b}}}`:                                                                `there twice`,
	} {
		_, err := policy.Parse([]byte("rules:\n" + rules))
		require.ErrorContains(t, err, fault, rules)
		assert.Positive(t, err.(*policy.Error).Line)
	}
}
