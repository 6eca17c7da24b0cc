package policy_test

import (
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/keyfunc"
	"github.com/weir-go/ratelimit/policy"
)

// byPath decides on a request with its target as on the wire.
func byPath(t *testing.T, p *policy.Policies, target string) bool {
	t.Helper()
	r := httptest.NewRequest("POST", "/", nil)
	u, err := url.ParseRequestURI(target)
	require.NoError(t, err)
	r.URL = u
	return p.Allow(policy.HTTP(r, nil), 1)
}

func inForceOf(t *testing.T, rules string) *policy.Policies {
	t.Helper()
	return ratelimit.Must(policy.New(parsed(t, "rules:\n"+rules), nil))
}

func TestNoSpellingOfAPathEvadesARule(t *testing.T) {
	p := inForceOf(t, `
- {name: charges, match: {route: ["POST /v1/charges", "/files/big/"]}, limit: blocked}
- {name: search, match: {route: "/search/"}, limit: blocked}`)
	for _, target := range []string{
		"/v1/charges", "/v1%2Fcharges", "/v1%2fcharges", "/%76%31/charges", "//v1/charges", "/v1//charges", "/v1/./charges", "/v1/x/../charges",
		"/v1/x/%2e%2e/charges", "/v1/x%2F..%2Fcharges", "/v1%2F%2Fcharges", "/files/big%2Fa.iso", "/files/x/%2e%2e/big/a.iso", "/files/x/%2E%2E%2Fbig/a.iso",
		"/search/x", "/search%2Fx", "/search/../x", "/search/%2e%2e/x",
	} {
		assert.False(t, byPath(t, p, target), target)
	}
	for _, target := range []string{"/v1/charge", "/v1/charges/", "/v1/x%20/charges", "/files/small/a%20b.iso", "/searches/../x"} {
		assert.True(t, byPath(t, p, target), target)
	}
}

func TestAnAllowRuleNeedsEveryReadingOfAPath(t *testing.T) {
	for _, match := range []string{`route: "/files/public/"`, `prefix: {path: /files/public/}`} {
		p := inForceOf(t, `
- {name: public, allow: true, match: {`+match+`}}
- {name: files, limit: blocked}`)
		for _, target := range []string{"/files/public/a.iso", "/files/public/a%20b.iso", "/files/public/%61", "/files/public/x/%2e%2e/y"} {
			assert.True(t, byPath(t, p, target), "%s: %s", match, target)
		}
		for _, target := range []string{"/files/public/%2e%2e/big/a.iso", "/files/public%2F..%2Fbig/a.iso", "/files/public/../big/a.iso", "/files/big/%2e%2e/public/a.iso", "/files/big/..%2Fpublic/a.iso"} {
			assert.False(t, byPath(t, p, target), "%s: %s", match, target)
		}
	}
	p := inForceOf(t, `
- {name: health, allow: true, match: {attributes: {path: [/healthz]}}}
- {name: all, limit: blocked}`)
	assert.True(t, byPath(t, p, "/healthz"))
	assert.True(t, byPath(t, p, "/%68ealthz"))
	assert.False(t, byPath(t, p, "/charges/../healthz"))
}

func TestConditionsAndKeysUseTheDecodedCleanedPath(t *testing.T) {
	p := inForceOf(t, `
- {name: login, match: {attributes: {path: [/login]}}, limit: blocked}
- {name: admin, match: {prefix: {path: /admin%20area/}}, limit: blocked}
- {name: not, match: {prefix: {path: /not}, not: {path: [/not/this]}}, limit: blocked}`)
	for _, target := range []string{"/login", "/%6Cogin", "//login", "/x/../login", "/%2Flogin", "/admin%20area/x", "/admin%20area%2Fx", "/not/that"} {
		assert.False(t, byPath(t, p, target), target)
	}
	for _, target := range []string{"/login/", "/logins", "/not/%74his", "/not//this"} {
		assert.True(t, byPath(t, p, target), target)
	}
	p = inForceOf(t, `
- {name: paths, key: path, limit: fixed-window 1/h, overrides: [{key: "/a%20b", limit: blocked}]}`)
	assert.True(t, byPath(t, p, "/x"))
	for _, target := range []string{"/x", "/%78", "//x", "/./x", "/y/../x", "/a%20b", "/%61%20b"} {
		assert.False(t, byPath(t, p, target), target)
	}
}

func TestPathsThatAreNoPathsAreComparedAsTheyAre(t *testing.T) {
	p := inForceOf(t, `
- {name: star, match: {attributes: {path: ["*", "a%20b", ""]}}, limit: blocked}`)
	for _, path := range []string{"*", "a%20b", ""} {
		assert.False(t, p.Allow(policy.Attributes{"path": path}, 1), path)
	}
	for _, path := range []string{"/*", "a b", "/%", "/%zz", "%", "//"} {
		assert.True(t, p.Allow(policy.Attributes{"path": path}, 1), path)
	}
}

// A server reads such a target's path as empty. A proxy may send the rest on, and then the next server reads a path in it.
func TestATargetWithoutAPathIsRefused(t *testing.T) {
	const rules = `
- {name: charges, match: {route: /v1/charges}, limit: blocked}
- {name: public, allow: true, match: {route: /public/}}`
	p := inForceOf(t, rules)
	for _, target := range []string{"x:y:/v1/charges", "x:y://h/v1/charges", "x:y:z:/v1/charges", "x:v1/charges", "x:y:/public/", "http:y"} {
		r := httptest.NewRequest("POST", "/", nil)
		r.URL = ratelimit.Must(url.ParseRequestURI(target))
		_, err := p.Take(t.Context(), policy.HTTP(r, nil), 1)
		require.ErrorIs(t, err, keyfunc.ErrMalformedKey, target)
		require.NotContains(t, err.Error(), target)
		ex, err := p.Explain(policy.HTTP(r, nil), 1)
		require.NoError(t, err)
		require.ErrorIs(t, ex.Err, keyfunc.ErrMalformedKey, target)
		require.ErrorIs(t, p.Adjust(t.Context(), policy.HTTP(r, nil), 1), keyfunc.ErrMalformedKey)
		assert.True(t, p.Allow(policy.HTTP(r, policy.Attributes{"path": "/x"}), 1), "the program knows the path")
		assert.False(t, p.Allow(policy.HTTP(r, policy.Attributes{"path": "/v1/charges"}), 1))
	}
	for _, target := range []string{"http:/v1/charges", "http://h/v1/charges", "x:/v1/charges", "x://v1/v1/charges"} {
		assert.False(t, byPath(t, p, target), target)
	}
	for _, target := range []string{"*", "http://h", "http:/public/x"} {
		assert.True(t, byPath(t, p, target), target)
	}
	killed := ratelimit.Must(policy.New(parsed(t, "kill_switch: true\nrules:"+rules), nil))
	assert.True(t, byPath(t, killed, "x:y:/v1/charges"))
}
