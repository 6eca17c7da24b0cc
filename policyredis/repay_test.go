package policyredis_test

import (
	"io"
	"log/slog"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// Four processes decide by rules with limits by the day, of plans and attributes, while Redis is out of use. When it is back, it is charged with what
// they let pass, under the same limits, and a rule with a cost of its own with that cost.
func TestRedisIsChargedWithAnOutage(t *testing.T) {
	const processes = 4
	set, err := policy.Parse([]byte(`
rules:
- name: calls
  key: user
  limit: fixed-window 100/d
  plans: {pro: sliding-log 400/d}
  limit_from: contract
- name: weight
  key: user
  limit: token-bucket 1000/d burst 1000
  cost: 7
- name: seen
  key: user
  limit: fixed-window 10/d
  shadow: true
`))
	require.NoError(t, err)
	server := redistest.Start(t)
	silent := slog.New(slog.NewTextHandler(io.Discard, nil))
	var fleet []*failover.Limiter[policy.Request]
	var shared *policy.Policies
	for range processes {
		client := redis.NewClient(&redis.Options{Addr: server.Addr, ReadTimeout: time.Minute, MaxRetries: -1})
		t.Cleanup(func() { client.Close() })
		local, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: processes})})
		require.NoError(t, err)
		shared, err = policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute}), StandIn: local})
		require.NoError(t, err)
		fleet = append(fleet, ratelimit.Must(failover.New[policy.Request](shared, local, &failover.Options{Timeout: -1, OpenFor: time.Millisecond, Logger: silent})))
	}
	force := func(to failover.State) {
		for _, l := range fleet {
			l.Force(to)
		}
	}
	ann, bob, carl := policy.Attributes{"user": "ann"}, policy.Attributes{"user": "bob", "plan": "pro"}, policy.Attributes{"user": "carl", "contract": "40"}
	spend := func(r policy.Request, n int) (passed int) {
		for i := range n {
			d, err := fleet[i%processes].Take(t.Context(), r, 1)
			require.NoError(t, err)
			if d.Allowed {
				passed++
			}
		}
		return passed
	}
	require.Equal(t, 20, spend(ann, 20))
	force(failover.StateOpen)
	passed := map[string]int{"ann": 20 + spend(ann, 60), "bob": spend(bob, 80), "carl": spend(carl, 100)}
	assert.Equal(t, map[string]int{"ann": 80, "bob": 80, "carl": 40}, passed)
	force(failover.StateClosed)
	used := func(rule, user, plan string) int {
		d, err := shared.Peek(t.Context(), policy.Subject{Rule: rule, Key: []string{user}, Plan: plan}, 1)
		require.NoError(t, err)
		return d.Limit.Capacity() - d.Remaining + d.Debt
	}
	require.Eventually(t, func() bool {
		spend(policy.Attributes{"user": "dora"}, processes)
		return used("calls", "ann", "") >= 80 && used("calls", "bob", "pro") >= 80 && used("weight", "carl", "") >= 7*40
	}, time.Minute, 100*time.Millisecond)
	assert.Equal(t, 80, used("calls", "ann", ""))
	assert.Equal(t, 80, used("calls", "bob", "pro"))
	assert.InDelta(t, 7*80, used("weight", "ann", ""), 7)
	assert.InDelta(t, 7*40, used("weight", "carl", ""), 7)
	d, err := fleet[0].Take(t.Context(), carl, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed, "the attribute's limit is used up: %+v", d)
	assert.False(t, d.Degraded)
	assert.Equal(t, processes*3, used("seen", "bob", ""), "a shadow counts what it would have let pass")
}

// Tenants that share a limit owe nothing for an outage: what they spent of it lay idle or was contested at the time. The rules beside it are
// charged, and the log has no failure.
func TestARuleWithShareOwesNothingForAnOutage(t *testing.T) {
	set, err := policy.Parse([]byte("rules:\n- {name: calls, key: user, limit: fixed-window 1000/d}\n- {name: up, key: user, limit: token-bucket 100/s burst 100, share: 1}\n"))
	require.NoError(t, err)
	client := redis.NewClient(&redis.Options{Addr: redistest.Start(t).Addr, ReadTimeout: time.Minute, MaxRetries: -1})
	defer client.Close()
	local, err := policy.New(set, nil)
	require.NoError(t, err)
	shared, err := policy.New(set, &policy.Options{Engine: policyredis.New(client, &policyredis.Options{Timeout: time.Minute}), StandIn: local})
	require.NoError(t, err)
	l := ratelimit.Must(failover.New[policy.Request](shared, local, &failover.Options{Timeout: -1, Logger: slog.New(slog.DiscardHandler)}))
	l.Force(failover.StateOpen)
	ann := policy.Attributes{"user": "ann"}
	for range 50 {
		require.True(t, l.Allow(ann, 1))
	}
	res, err := l.Reserve(t.Context(), ann, 20, 0)
	require.NoError(t, err)
	require.True(t, res.Allowed)
	require.NoError(t, res.Settle(7))
	require.NoError(t, local.Repay(t.Context()))
	d, err := shared.Peek(t.Context(), policy.Subject{Rule: "calls", Key: []string{"ann"}}, 1)
	require.NoError(t, err)
	assert.Equal(t, 1000-57, d.Remaining)
}
