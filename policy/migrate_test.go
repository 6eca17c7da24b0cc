package policy_test

import (
	"os"
	"regexp"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// burst is a number of requests at one instant, and how many of them pass.
type burst struct {
	after   time.Duration // the time since the previous burst
	request policy.Attributes
	n, pass int
}

// configurations are bursts for the rules in docs/migrate.md, by heading.
var configurations = map[string][]burst{
	"envoyproxy/ratelimit: requests of an address, by the clock": {
		{0, attrs{"ip": "192.0.2.1"}, 12, 10}, {0, attrs{"ip": "192.0.2.2"}, 1, 1}, {time.Minute, attrs{"ip": "192.0.2.1"}, 12, 10},
	},
	"envoyproxy/ratelimit: one value has a limit of its own, another is on trial": {
		{0, attrs{"user": "ann", "path": "/a"}, 150, 100}, {0, attrs{"user": "vip", "path": "/a"}, 1100, 1000},
	},
	"nginx: limit_req with a burst": {
		{0, attrs{"ip": "192.0.2.1", "path": "/api/x"}, 30, 21}, {time.Second, attrs{"ip": "192.0.2.1", "path": "/api/x"}, 30, 10}, {0, attrs{"ip": "192.0.2.1", "path": "/x"}, 30, 30},
	},
	"nginx: some networks are exempt": {
		{0, attrs{"ip": "10.1.2.3"}, 50, 50}, {0, attrs{"ip": "192.0.2.1"}, 5, 1},
	},
	"nginx: logins, by address and page": {
		{0, attrs{"ip": "192.0.2.1", "path": "/login", "method": "POST"}, 9, 5}, {0, attrs{"ip": "192.0.2.1", "path": "/login", "method": "GET"}, 9, 9},
		{12 * time.Second, attrs{"ip": "192.0.2.1", "path": "/login", "method": "POST"}, 9, 1},
	},
	"Kong: a route has its own limit in place of the service's": {
		{0, attrs{"consumer": "ann", "path": "/api/x", "method": "GET"}, 9, 5}, {0, attrs{"consumer": "ann", "path": "/api/bulk/", "method": "POST"}, 1100, 1000},
		{time.Minute, attrs{"consumer": "ann", "path": "/api/x", "method": "GET"}, 9, 5},
	},
	"Kong: by a header field": {
		{0, attrs{"header:X-Tenant": "a", "ip": "192.0.2.1"}, 30, 20}, {0, attrs{"header:X-Tenant": "b", "ip": "192.0.2.1"}, 30, 20}, {0, attrs{"ip": "192.0.2.1"}, 30, 20},
	},
	"Traefik: an average with a burst, and subnets of IPv6": {
		{0, attrs{"ip": "192.0.2.1"}, 60, 50}, {0, attrs{"ip": "192.0.2.2"}, 60, 50}, {0, attrs{"ip": "2001:db8::"}, 60, 50}, {0, attrs{"ip": "2001:db8:0:ff::"}, 1, 0},
		{6 * time.Second, attrs{"ip": "192.0.2.1"}, 60, 10},
	},
	"HAProxy: a rate in a stick table": {
		{0, attrs{"ip": "192.0.2.1"}, 30, 20}, {0, attrs{"ip": "192.0.2.2"}, 30, 20}, {20 * time.Second, attrs{"ip": "192.0.2.1"}, 30, 20},
	},
	"LiteLLM: requests and tokens a minute, by the key's own figures": {
		{0, attrs{"api_key": "a", "model": "gpt-4o"}, 70, 60}, {0, attrs{"api_key": "b", "model": "gpt-4o", "rpm": "5"}, 70, 5},
		{0, attrs{"api_key": "c", "model": "gpt-4o", "tpm": "10"}, 70, 10}, {0, attrs{"api_key": "a", "model": "other"}, 70, 70},
	},
	"Caddy: a zone (module caddy-ratelimit)": {
		{0, attrs{"ip": "192.0.2.1", "method": "GET", "path": "/x"}, 120, 100}, {0, attrs{"ip": "192.0.2.1", "method": "POST", "path": "/x"}, 120, 120},
		{59 * time.Second, attrs{"ip": "192.0.2.1", "method": "GET", "path": "/x"}, 1, 0}, {time.Second, attrs{"ip": "192.0.2.1", "method": "GET", "path": "/x"}, 120, 100},
	},
	"Istio: a local token bucket": {
		{0, attrs{}, 120, 100}, {59 * time.Second, attrs{}, 1, 0}, {time.Second, attrs{}, 120, 100},
	},
	"Spring Cloud Gateway: RequestRateLimiter": {
		{0, attrs{"user": "ann"}, 15, 10}, {time.Second, attrs{"user": "ann"}, 15, 5},
	},
	"Kuadrant: predicates and counters": {
		{0, attrs{"userid": "ann", "method": "POST", "path": "/x"}, 9, 5}, {0, attrs{"userid": "ann", "method": "POST", "path": "/internal/x"}, 9, 9},
		{0, attrs{"userid": "ann", "method": "GET", "path": "/x"}, 9, 9}, {10 * time.Second, attrs{"userid": "ann", "method": "POST", "path": "/x"}, 9, 5},
	},
	"Envoy Gateway: distinct values of a header field, and a network": {
		{0, attrs{"header:x-user-id": "a", "ip": "198.51.100.1"}, 9, 3}, {0, attrs{"header:x-user-id": "b", "ip": "198.51.100.1"}, 9, 3},
		{0, attrs{"ip": "192.0.2.1"}, 19, 10}, {time.Second, attrs{"ip": "192.0.2.1"}, 19, 10}, {0, attrs{"ip": "198.51.100.1"}, 19, 19},
	},
}

// TestTheConfigurationsOfOtherSystems makes bursts under the rules
// in docs/migrate.md. Check must find no fault in these rules.
func TestTheConfigurationsOfOtherSystems(t *testing.T) {
	page, err := os.ReadFile("../docs/migrate.md")
	require.NoError(t, err)
	sections := regexp.MustCompile("(?s)\n### ([^\n]+)\n.*?```yaml\n(.*?)```").FindAllSubmatch(page, -1)
	found := map[string]bool{}
	for _, s := range sections {
		name, rules := string(s[1]), s[2]
		found[name] = true
		t.Run(name, func(t *testing.T) {
			set, warnings := policy.Check(rules)
			require.NotNil(t, set, "%v", warnings)
			assert.Empty(t, warnings)
			clock := new(ratelimittest.Clock)
			clock.SetWall(time.Date(2026, 3, 2, 10, 0, 0, 0, time.UTC))
			p := ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})}))
			bursts := configurations[name]
			require.NotEmpty(t, bursts, "the test plays nothing for this section")
			for i, b := range bursts {
				clock.Advance(b.after)
				passed := 0
				for range b.n {
					if p.Allow(b.request, 1) {
						passed++
					}
				}
				assert.Equal(t, b.pass, passed, "burst %d, of %v", i, b.request)
			}
			assert.Zero(t, p.Stats().BadLimits)
		})
	}
	assert.Len(t, found, 15)
	for name := range configurations {
		assert.True(t, found[name], "the page has no section %q", name)
	}
}

// The rules for LiteLLM charge a call as one request and its real tokens: here 500, after an estimate of 4,000.
func TestASettledCallOfLiteLLMIsOneRequestAndItsTokens(t *testing.T) {
	page, err := os.ReadFile("../docs/migrate.md")
	require.NoError(t, err)
	section := regexp.MustCompile("(?s)\n### LiteLLM[^\n]+\n.*?```yaml\n(.*?)```").FindSubmatch(page)
	require.NotNil(t, section)
	set, err := policy.Parse(section[1])
	require.NoError(t, err)
	p := ratelimit.Must(policy.New(set, nil))
	r := attrs{"api_key": "a", "model": "gpt-4o"}
	res, err := p.Reserve(t.Context(), r, 4000, 0)
	require.NoError(t, err)
	r["total_tokens"] = "500"
	require.NoError(t, res.Settle(1))
	ex, err := p.Explain(r, 1)
	require.NoError(t, err)
	left := map[string]int{}
	for _, rule := range ex.Rules {
		left[rule.Rule] = rule.Decision.Remaining
	}
	assert.Equal(t, map[string]int{"requests": 59, "tokens": 99_500}, left)
}
