package policy_test

import (
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// exampleRules returns a file's policies, with budgets in memory, and their clock. The file must have no warnings.
func exampleRules(t *testing.T, path string) (*policy.Policies, *ratelimittest.Clock) {
	t.Helper()
	text, err := os.ReadFile(path)
	require.NoError(t, err)
	set, warnings := policy.Check(text)
	require.NotNil(t, set, "%v", warnings)
	require.Empty(t, warnings)
	set, err = policy.File(path).Load(t.Context())
	require.NoError(t, err)
	clock := new(ratelimittest.Clock)
	return ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})), clock
}

// denier returns the rule denying a request, or "", and the reservation.
func denier(t *testing.T, p *policy.Policies, r policy.Request) (string, *ratelimit.Reservation) {
	t.Helper()
	res, err := p.Reserve(t.Context(), r, 1, 0)
	if err != nil {
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	}
	if res.Allowed {
		return "", res
	}
	return res.Limit.Name, res
}

// A client uses GitHub for an hour. It reads all the time, writes, and creates content.
func TestTheLimitsOfGitHub(t *testing.T) {
	p, clock := exampleRules(t, "examples/github.yaml")
	call := func(user, method, path string) string {
		r := attrs{"user": user, "method": method, "path": path}
		by, res := denier(t, p, r)
		if by == "" {
			r["cpu_ms"] = "30"
			require.NoError(t, res.Settle(1))
		}
		return by
	}
	open := []*ratelimit.Reservation{}
	for i := range 120 {
		by, res := denier(t, p, attrs{"user": "many", "method": "GET", "path": "/user"})
		assert.Equal(t, i >= 100, by == "concurrent")
		open = append(open, res)
	}
	require.NoError(t, open[7].Settle(1))
	by, _ := denier(t, p, attrs{"user": "many", "method": "GET", "path": "/user"})
	assert.Empty(t, by, "a place is free")

	passed, denied := map[string]int{}, map[string]int{}
	for minute := range 60 {
		for range 100 {
			for _, c := range [][2]string{{"POST", "/repos/a/b/issues"}, {"GET", "/repos/a/b"}} {
				if by := call("ann", c[0], c[1]); by == "" {
					passed[c[0]]++
				} else {
					denied[by]++
				}
			}
			clock.Advance(time.Minute / 100)
		}
		assert.LessOrEqual(t, passed["POST"], min(80*(minute+1), 500))
	}
	assert.Equal(t, 500, passed["POST"], "by the hour")
	assert.Equal(t, 5000, passed["POST"]+passed["GET"])
	assert.Positive(t, denied["content_minute"])
	assert.Positive(t, denied["content_hour"])
	assert.Positive(t, denied["hourly"])

	writes := 0
	for call("bob", "PATCH", "/repos/a/b") == "" {
		writes++
	}
	assert.Equal(t, 180, writes, "900 points")
	slow := attrs{"user": "eve", "method": "GET", "path": "/search/code", "cpu_ms": "100000"}
	by, res := denier(t, p, slow)
	require.Empty(t, by)
	require.NoError(t, res.Settle(1))
	by, _ = denier(t, p, slow)
	assert.Equal(t, "processor", by)
	clock.Advance(10 * time.Second)
	by, _ = denier(t, p, slow)
	assert.Empty(t, by, "10 s of processor time were owed, and 15 are regained")
	for i := range 61 {
		by, _ := denier(t, p, attrs{"ip": "192.0.2.1", "method": "GET", "path": "/"})
		assert.Equal(t, i == 60, by == "anonymous")
	}
}

// For a minute, a Stripe account does more of everything than it may.
func TestTheLimitsOfStripe(t *testing.T) {
	p, clock := exampleRules(t, "examples/stripe.yaml")
	second := func(account, plan, method, path string) (passed int) {
		for range 300 {
			by, res := denier(t, p, attrs{"account": account, "plan": plan, "method": method, "path": path})
			if by == "" {
				passed++
				require.NoError(t, res.Settle(1))
			}
		}
		return passed
	}
	sums := map[string]int{}
	for range 60 {
		for _, c := range [][3]string{{"GET", "/v1/charges", ""}, {"POST", "/v1/charges", ""}, {"GET", "/v1/charges", "test"}, {"GET", "/v1/files/f1", ""}, {"POST", "/v1/files", ""}, {"GET", "/v1/customers/search", ""}} {
			sums[fmt.Sprint(c)] += second("acct"+c[2], c[2], c[0], c[1])
		}
		clock.Advance(time.Second)
	}
	assert.Equal(t, map[string]int{
		"[GET /v1/charges ]": 6000, "[POST /v1/charges ]": 6000, "[GET /v1/charges test]": 1500, "[GET /v1/files/f1 ]": 1200, "[POST /v1/files ]": 1200, "[GET /v1/customers/search ]": 1200,
	}, sums)
	updates := 0
	for range 12 {
		updates += second("shop", "", "POST", "/v1/payment_intents/pi_1")
		clock.Advance(time.Second)
		updates += second("shop", "", "POST", "/v1/payment_intents/pi_1/confirm")
		clock.Advance(time.Second)
	}
	assert.Equal(t, 1000, updates)
	assert.Equal(t, 100, second("shop", "", "POST", "/v1/payment_intents/pi_2"))
	for i := range 21 {
		by, _ := denier(t, p, attrs{"account": "slow", "method": "GET", "path": "/v1/charges"})
		assert.Equal(t, i == 20, by == "concurrent")
	}
}

func TestTheListsOfHAProxy(t *testing.T) {
	p, clock := exampleRules(t, "examples/haproxy/rules.yaml")
	by := func(ip, key string) string {
		name, _ := denier(t, p, attrs{"ip": ip, "header:X-API-Key": key})
		return name
	}
	for ip, want := range map[string]string{
		"198.51.100.9": "bad", "203.0.113.7": "bad", "203.0.113.8": "", "2001:db8:bad:5::": "bad", "2001:db8:c0de::": "",
	} {
		assert.Equal(t, want, by(ip, ""), ip)
	}
	assert.Equal(t, "leaked", by("192.0.2.1", "sk-example-2"))
	for range 100 {
		assert.Empty(t, by("192.0.2.200", ""), "a partner")
	}
	for i := range 30 {
		assert.Equal(t, i >= 20, by("192.0.2.5", "") == "rate")
	}
	passed := 0
	for range 60 { // 3 a second are more than 20 in 10 s. Denied requests count, too, so none passes.
		if by("192.0.2.5", "") == "" {
			passed++
		}
		clock.Advance(time.Second / 3)
	}
	assert.Zero(t, passed)
	clock.Advance(time.Minute)
	assert.Empty(t, by("192.0.2.5", ""))
}
