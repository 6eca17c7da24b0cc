package policyredis_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policyredis"
)

// keysOf returns the keys that Each visits, by their names.
func keysOf(t *testing.T, p *policy.Policies, rule string) map[string]ratelimit.Decision {
	t.Helper()
	all := map[string]ratelimit.Decision{}
	require.NoError(t, p.Each(t.Context(), rule, func(key []string, d ratelimit.Decision) bool {
		all[d.Limit.Name+" "+strings.Join(key, "/")] = d
		return true
	}))
	visits := 0
	require.NoError(t, p.Each(t.Context(), rule, func([]string, ratelimit.Decision) bool { visits++; return false }))
	assert.Equal(t, 1, visits)
	return all
}

// TestEachListsTheLimitedKeysOfTheFleet: one process spends, and another one lists the keys.
func TestEachListsTheLimitedKeysOfTheFleet(t *testing.T) {
	const rules = `rules:
- {name: Pairs, key: [user, region], limit: fixed-window 2/h, overrides: [{key: [big, eu], limit: fixed-window 100/h}, {key: [small, eu], limit: fixed-window 1/h}]}`
	client := local(t)
	spends, lists := over(t, client, rules, policyredis.Options{}, policy.Options{}), over(t, client, rules, policyredis.Options{}, policy.Options{})
	for user, n := range map[string]int{"ann": 2, "bob": 1, "big": 3, "small": 1} {
		for range n {
			take(t, spends, policy.Attributes{"user": user, "region": "eu"}, 1)
		}
	}
	got := keysOf(t, lists, "pairs")
	require.Len(t, got, 4)
	for key, left := range map[string]int{"ann/eu": 0, "bob/eu": 1, "big/eu": 97, "small/eu": 0} {
		d := got["Pairs "+key]
		assert.Equal(t, left, d.Remaining, key)
		assert.Equal(t, left > 0, d.Allowed, key)
	}

	require.NoError(t, client.Close())
	assert.ErrorIs(t, lists.Each(t.Context(), "pairs", func([]string, ratelimit.Decision) bool { return true }), ratelimit.ErrUnavailable)
}

// scans counts the SCAN commands that a server has executed.
func scans(t *testing.T, client *redis.Client) (n int) {
	t.Helper()
	text, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	if found := regexp.MustCompile(`cmdstat_scan:calls=(\d+)`).FindStringSubmatch(text); found != nil {
		n, err = strconv.Atoi(found[1])
		require.NoError(t, err)
	}
	return n
}

// TestThePageScansRedisOnceForAllRules: 200 rules and 100,000 keys, most of them others', with and without leases.
func TestThePageScansRedisOnceForAllRules(t *testing.T) {
	const rules, keys, perCall = 200, 100_000, 1000
	for name, opts := range map[string]policyredis.Options{"plain": {}, "leased": {Tenant: "tenant", MaxBatch: 1}} {
		t.Run(name, func(t *testing.T) {
			client := local(t)
			// Half the keys are a removed rule's, and half of another program.
			require.NoError(t, client.Eval(t.Context(), "for i = 1, ARGV[1] / 2 do redis.call('SET', 'policy:gone:{' .. i .. '}', 'x') redis.call('SET', 'other:' .. i, 'x') end return 1", nil, keys).Err())
			text := "rules:\n"
			for i := range rules {
				match := fmt.Sprintf("match: {attributes: {n: [n%d]}}, ", i)
				if i == 7 {
					match += "disabled: true, "
				}
				text += fmt.Sprintf("- {name: R%d, %skey: user, limit: fixed-window 1/h, overrides: [{key: vip, limit: fixed-window 2/h}]}\n", i, match)
			}
			p := over(t, client, text, opts, policy.Options{})
			for i := range rules {
				for _, user := range []string{"ann", "vip"} {
					take(t, p, policy.Attributes{"user": user, "n": fmt.Sprint("n", i)}, 1)
				}
			}
			before := scans(t, client)
			got := keysOf(t, p, "")
			assert.Len(t, got, 2*(rules-1), "all but those of the disabled rule")
			assert.Equal(t, []int{0, 1}, []int{got["R0 ann"].Remaining, got["R0 vip"].Remaining}, "each under its own limit")
			assert.LessOrEqual(t, scans(t, client)-before, 2*keys/perCall)

			before = scans(t, client)
			request := httptest.NewRequest(http.MethodPost, "/", strings.NewReader("do=limited"))
			request.Header = http.Header{"Content-Type": {"application/x-www-form-urlencoded"}}
			page := httptest.NewRecorder()
			admin.New(p, &admin.Options{ShowKeys: true}).ServeHTTP(page, request)
			assert.Contains(t, page.Body.String(), "ann")
			assert.LessOrEqual(t, scans(t, client)-before, 2*keys/perCall)
		})
	}
}
