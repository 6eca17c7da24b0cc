package policy_test

import (
	"net/http/httptest"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/policy"
)

// TestCredentialsInHeadersAreHashed: the keys of header fields with credentials hold no secret, however the field is spelt.
func TestCredentialsInHeadersAreHashed(t *testing.T) {
	for _, field := range []string{"X-API-Key", "x-api-key", "Authorization", "Proxy-Authorization", "X-Auth-Token", "Cookie"} {
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

// TestExemptionsThatClientsChooseAreWarnings: a client that writes the header, the query or the cookie of an exemption is exempt.
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
	set, warnings := policy.Check([]byte("rules:\n- {name: a, match: {attributes: {\"header:X-Internal\": \"1\"}}, limit: fixed-window 1/s}\n- {name: b, match: {attributes: {service: billing}}, allow: true}"))
	require.NotNil(t, set)
	assert.Empty(t, warnings)
}
