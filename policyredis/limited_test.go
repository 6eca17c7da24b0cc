package policyredis_test

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policy/admin"
	"github.com/weir-go/ratelimit/policyredis"
)

// scans returns the number of SCAN commands that a server has executed.
func scans(t *testing.T, client *redis.Client) int {
	t.Helper()
	text, err := client.Info(t.Context(), "commandstats").Result()
	require.NoError(t, err)
	found := regexp.MustCompile(`cmdstat_scan:calls=(\d+)`).FindStringSubmatch(text)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	require.NoError(t, err)
	return n
}

// TestThePageScansRedisOnceForAllRules: 200 rules and 100,000 keys, most of them others', with and without leases.
func TestThePageScansRedisOnceForAllRules(t *testing.T) {
	const rules, keys, perCall = 200, 100_000, 1000
	for name, opts := range map[string]policyredis.Options{"plain": {}, "leased": {Tenant: "tenant", MaxBatch: 1}} {
		t.Run(name, func(t *testing.T) {
			client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute})
			defer client.Close()
			// Half of the keys are a removed rule's, and half of another program.
			require.NoError(t, client.Eval(t.Context(), "for i = 1, ARGV[1] / 2 do redis.call('SET', 'policy:gone:{' .. i .. '}', 'x') redis.call('SET', 'other:' .. i, 'x') end return 1", nil, keys).Err())
			text := "rules:\n"
			for i := range rules {
				match := fmt.Sprintf("match: {attributes: {n: [n%d]}}, ", i)
				if i == 7 {
					match += "disabled: true, "
				}
				text += fmt.Sprintf("- {name: R%d, %skey: user, limit: fixed-window 1/h, overrides: [{key: vip, limit: fixed-window 2/h}]}\n", i, match)
			}
			opts.Timeout = time.Minute
			p, err := policy.New(parsed(t, text), &policy.Options{Engine: policyredis.New(client, &opts)})
			require.NoError(t, err)
			for i := range rules {
				for _, user := range []string{"ann", "vip"} {
					_, err := p.Take(t.Context(), policy.Attributes{"user": user, "n": fmt.Sprint("n", i)}, 1)
					require.NoError(t, err)
				}
			}
			before := scans(t, client)
			got := map[string]int{}
			require.NoError(t, p.Each(t.Context(), "", func(key []string, d ratelimit.Decision) bool {
				got[d.Limit.Name+" "+strings.Join(key, "/")] = d.Remaining
				return true
			}))
			assert.Len(t, got, 2*(rules-1), "all but those of the disabled rule")
			assert.Equal(t, []int{0, 1}, []int{got["R0 ann"], got["R0 vip"]}, "each under its own limit")
			assert.LessOrEqual(t, scans(t, client)-before, 2*keys/perCall)
			visits := 0
			require.NoError(t, p.Each(t.Context(), "", func([]string, ratelimit.Decision) bool { visits++; return false }))
			assert.Equal(t, 1, visits)

			before = scans(t, client)
			w := httptest.NewRecorder()
			r := httptest.NewRequest(http.MethodPost, "/", strings.NewReader(url.Values{"do": {"limited"}}.Encode()))
			r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
			r.Header.Set("Accept", "application/json")
			admin.New(p, &admin.Options{ShowKeys: true}).ServeHTTP(w, r)
			require.Equal(t, http.StatusOK, w.Code, w.Body)
			var page struct {
				Limited []struct{ Rule, Key, Limit string } `json:"limited"`
			}
			require.NoError(t, json.Unmarshal(w.Body.Bytes(), &page))
			assert.Len(t, page.Limited, 50)
			for _, l := range page.Limited {
				assert.Equal(t, "ann", l.Key)
				assert.Regexp(t, `^R\d+$`, l.Rule)
			}
			assert.LessOrEqual(t, scans(t, client)-before, 2*keys/perCall)
		})
	}
}
