package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
)

// A rule may spell addresses and hosts in any way.
func TestNoSpellingOfARuleMissesItsRequests(t *testing.T) {
	for _, test := range []struct{ rule, attribute, value string }{
		{`key: ip, limit: unlimited, overrides: [{key: "2001:DB8::", limit: blocked}]`, "ip", "2001:db8::"},
		{`key: ip, limit: unlimited, overrides: [{key: "2001:db8:0:0::", limit: blocked}]`, "ip", "2001:db8::"},
		{`key: ip, limit: unlimited, overrides: [{key: "::ffff:10.0.0.1", limit: blocked}]`, "ip", "10.0.0.1"},
		{`key: [ip/24, user], limit: unlimited, overrides: [{key: ["2001:DB8::", ann], limit: blocked}]`, "ip", "2001:db8::"},
		{`key: host, limit: unlimited, overrides: [{key: API.example.com, limit: blocked}]`, "host", "api.example.com"},
		{`match: {attributes: {host: [API.example.com]}}, limit: blocked`, "host", "api.example.com"},
		{`match: {prefix: {host: [API.]}}, limit: blocked`, "host", "api.example.com"},
		{`match: {suffix: {host: [.Example.com]}}, limit: blocked`, "host", "api.EXAMPLE.com"},
	} {
		set, warnings := policy.Check([]byte("rules:\n- {name: a, " + test.rule + "}"))
		require.NotNil(t, set, warnings)
		assert.Empty(t, warnings, test.rule)
		p := ratelimit.Must(policy.New(set, nil))
		assert.False(t, p.Allow(policy.Attributes{test.attribute: test.value, "user": "ann"}, 1), test.rule)
	}
}
