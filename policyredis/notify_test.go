package policyredis_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// TestAFleetCountsLimitsOfAttributesReplacesRulesAndNotifies: two processes decide in turn, by rules that a file has of late.
func TestAFleetCountsLimitsOfAttributesReplacesRulesAndNotifies(t *testing.T) {
	set, err := policy.Parse([]byte(`rules:
- {name: bulk, match: {route: /bulk/}, key: user, limit: calendar 500/hour UTC, instead: [api]}
- {name: api, key: user, limit: calendar 10/hour UTC, limit_from: quota, notify: [80%, 100%]}
`))
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute})
	defer client.Close()
	var fleet []*policy.Policies
	var noted []string
	for i := range 2 {
		p, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute}), OnThreshold: func(at policy.Threshold) {
			noted = append(noted, fmt.Sprintf("process %d: %s %d%%", i, at.Key, at.Percent))
		}})
		require.NoError(t, err)
		fleet = append(fleet, p)
	}
	if left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)); left < time.Minute {
		time.Sleep(left + time.Second) // the server's clock decides when an hour ends
	}
	passed := func(user, quota, path string) (n int) {
		for i := range 60 {
			d, err := fleet[i%2].Take(t.Context(), policy.Attributes{"user": user, "quota": quota, "path": path}, 1)
			require.NoError(t, err)
			if d.Allowed {
				n++
			}
		}
		return n
	}
	assert.Equal(t, 10, passed("ann", "", "/"))
	assert.Equal(t, []string{"process 1: ann 80%", "process 1: ann 100%", "process 0: ann 100%"}, noted, "the charges that cross, and the first denial by the other process")
	assert.Equal(t, 60, passed("ann", "", "/bulk/x"), "another rule takes the place")
	assert.Equal(t, 30, passed("bob", "30", "/"))
	assert.Equal(t, 10, passed("cid", "9999999999999999", "/"), "Redis cannot count that many: the rule's own limit")
	assert.EqualValues(t, 30, fleet[0].Stats().BadLimits)
	noted = nil
	res, err := fleet[0].Reserve(t.Context(), policy.Attributes{"user": "dan", "path": "/"}, 1, 0)
	require.NoError(t, err)
	require.NoError(t, res.Settle(9))
	assert.Equal(t, []string{"process 0: dan 80%"}, noted)
	held, err := fleet[0].Reserve(t.Context(), policy.Attributes{"user": "eva", "path": "/"}, 9, 0)
	require.NoError(t, err)
	d, err := fleet[0].Take(t.Context(), policy.Attributes{"user": "eva", "path": "/"}, 2)
	require.NoError(t, err)
	require.False(t, d.Allowed)
	require.NoError(t, held.Settle(1))
	assert.Equal(t, []string{"process 0: dan 80%", "process 0: eva 100%"}, noted, "of the denial, not of the estimate")
	noted = noted[:1]
	require.NoError(t, fleet[1].Adjust(t.Context(), policy.Subject{Rule: "api", Key: []string{"dan"}}, 5))
	assert.Equal(t, []string{"process 0: dan 80%", "process 1: dan 100%"}, noted)
	for _, p := range fleet {
		d, err := p.Peek(t.Context(), policy.Subject{Rule: "api", Key: []string{"dan"}}, 1)
		require.NoError(t, err)
		assert.Equal(t, 4, d.Debt, "14 of 10 were charged")
	}
	d, err = fleet[0].Take(t.Context(), policy.Attributes{"user": "dan", "path": "/"}, 1)
	require.NoError(t, err)
	assert.Equal(t, 4, d.Debt)
	assert.False(t, d.Allowed)
}
