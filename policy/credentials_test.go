package policy_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// TestCredentialsInHeadersAreHashed checks that keys from header fields
// with credentials contain no secret, however the field is spelt.
func TestCredentialsInHeadersAreHashed(t *testing.T) {
	for _, field := range []string{"X-API-Key", "x-api-key", "Authorization", "Proxy-Authorization", "X-Auth-Token", "Cookie", "X-Acme-API-Key", "X_Acme_Token", "X-Client-Secret", "X-Session-Id"} {
		p := inForceOf(t, "- {name: a, key: \"header:"+field+"\", limit: fixed-window 1/h}")
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(field, "s3cret")
		assert.True(t, p.Allow(policy.HTTP(r, nil), 1), field)
		assert.False(t, p.Allow(policy.HTTP(r, nil), 1), field)
		denied := p.Denied(10)
		require.Len(t, denied, 1, field)
		assert.NotContains(t, denied[0].Key, "s3cret", field)
		require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "a", Key: []string{"s3cret"}}))
		assert.True(t, p.Allow(policy.HTTP(r, nil), 1), field)
	}
}

// TestOtherHeadersAreNotHashed checks that operators can read all other keys on a page.
func TestOtherHeadersAreNotHashed(t *testing.T) {
	for _, field := range []string{"X-Tenant", "X-Auth-Request-Email", "User-Agent", "X-Monkey", "X-Keyboard"} {
		p := inForceOf(t, "- {name: a, key: \"header:"+field+"\", limit: blocked}")
		r := httptest.NewRequest("GET", "/", nil)
		r.Header.Set(field, "acme")
		assert.False(t, p.Allow(policy.HTTP(r, nil), 1), field)
		assert.Equal(t, "acme", p.Denied(10)[0].Key, field)
	}
}

// TestNoEngineSeesACredential checks engines, hooks and lists. Each one gets the hash in place of the credential.
func TestNoEngineSeesACredential(t *testing.T) {
	const secret = "s3cret"
	var inStore *ratelimit.Keyed[string]
	store := func() policy.Engine {
		return func(b policy.Budget, _ ratelimit.Limiter[string]) (_ ratelimit.Limiter[string], err error) {
			inStore, err = ratelimit.New[string](b.Limit, nil)
			return inStore, err
		}
	}
	for i, engine := range []func() policy.Engine{func() policy.Engine { return policy.Memory(nil) }, store} {
		for _, key := range []string{"header:X-API-Key", "[ip, header:Authorization]", "query:key", "[cookie:session, user]"} {
			var seen []string
			set := parsed(t, "rules: [{name: a, key: "+key+", limit: fixed-window 1/h, notify: [100%]}]")
			p, err := policy.New(set, &policy.Options{
				Engine:      engine(),
				OnDecision:  func(d policy.Decision) { seen = append(seen, fmt.Sprint(d.Rules)) },
				OnThreshold: func(n policy.Threshold) { seen = append(seen, fmt.Sprint(n.Key)) },
			})
			require.NoError(t, err)
			r := httptest.NewRequest("GET", "/?key="+secret, nil)
			r.Header.Set("X-API-Key", secret)
			r.Header.Set("Authorization", secret)
			r.AddCookie(&http.Cookie{Name: "session", Value: secret})
			request := policy.HTTP(r, policy.Attributes{"user": "ann"})
			require.True(t, p.Allow(request, 1))
			require.False(t, p.Allow(request, 1))
			ex, err := p.Explain(request, 1)
			require.NoError(t, err)
			seen = append(seen, ex.String(), fmt.Sprint(p.Denied(10)))
			require.NoError(t, p.Each(t.Context(), "a", func(key []string, _ ratelimit.Decision) bool { seen = append(seen, fmt.Sprint(key)); return true }))
			require.Len(t, seen, 6)
			for _, text := range seen {
				assert.NotContains(t, text, secret, key)
			}
			if i == 1 {
				for key := range inStore.All() {
					assert.NotContains(t, key, secret)
				}
			}
		}
	}
}

// TestExemptionsThatClientsChooseAreWarnings exempts by a header,
// the query or a cookie. A client writing these exempts itself.
func TestExemptionsThatClientsChooseAreWarnings(t *testing.T) {
	for _, name := range []string{"header:X-Internal", "query:debug", "cookie:vip"} {
		for _, text := range []string{
			"rules:\n- {name: a, match: {attributes: {\"" + name + "\": \"1\"}}, allow: true}",
			"rules:\n- {name: b, key: user, limit: fixed-window 1/s}\n- {name: a, match: {attributes: {\"" + name + "\": \"1\"}}, key: user, limit: fixed-window 9/s, instead: b}",
		} {
			set, warnings := policy.Check([]byte(text))
			require.NotNil(t, set, "%v", warnings)
			require.Len(t, warnings, 1, text)
			assert.ErrorContains(t, warnings[0], "any client can exempt itself")
			assert.Contains(t, warnings[0].Field, name)
		}
	}
	for _, replaces := range []string{"key: header:X-API-Key, optional: true", "key: [user, query:key]", "key: cookie:session", "key: user, optional: true, cost: header:X-Tokens"} {
		set, warnings := policy.Check([]byte("rules:\n- {name: b, key: ip, limit: fixed-window 1/s}\n- {name: a, " + replaces + ", limit: fixed-window 9/s, instead: b}"))
		require.NotNil(t, set, "%v", warnings)
		require.Len(t, warnings, 1, replaces)
		assert.ErrorContains(t, warnings[0], "a client writes")
	}
	set, warnings := policy.Check([]byte("rules:\n- {name: a, match: {attributes: {\"header:X-Internal\": \"1\"}}, limit: fixed-window 1/s}\n- {name: b, match: {attributes: {service: billing}}, allow: true}"))
	require.NotNil(t, set)
	assert.Empty(t, warnings)
}
