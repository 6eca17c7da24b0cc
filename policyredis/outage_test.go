package policyredis_test

import (
	"log/slog"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// failingOver returns policies on a server, their stand-in in memory, and the
// limiter changing between them. Once forced to a state, the limiter stays in it.
func failingOver(t *testing.T, addr, text string, processes int) (shared, local *policy.Policies, l *failover.Limiter[policy.Request]) {
	local = ratelimit.Must(policy.New(parsed(text), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Processes: processes})}))
	shared = over(dial(t, addr), text, policyredis.Options{}, policy.Options{StandIn: local})
	opts := &failover.Options{Timeout: -1, OpenFor: time.Millisecond, Logger: slog.New(slog.DiscardHandler)}
	return shared, local, ratelimit.Must(failover.New[policy.Request](shared, local, opts))
}

// While Redis is out of use, four processes decide by rules with daily limits, some of them by plan or attribute. Once Redis
// is back, it is charged with the allowed costs, under the same limits. A rule with its own cost is charged with this cost.
func TestRedisIsChargedWithAnOutage(t *testing.T) {
	const processes = 4
	const text = `
rules:
- {name: calls, key: user, limit: fixed-window 100/d, plans: {pro: sliding-log 400/d}, limit_from: contract}
- {name: weight, key: user, limit: token-bucket 1000/d burst 1000, cost: 7}
- {name: seen, key: user, limit: fixed-window 10/d, shadow: true}
`
	addr := redistest.Start(t).Addr
	var fleet [processes]*failover.Limiter[policy.Request]
	var shared *policy.Policies
	for i := range fleet {
		shared, _, fleet[i] = failingOver(t, addr, text, processes)
	}
	force := func(to failover.State) {
		for _, l := range fleet {
			l.Force(to)
		}
	}
	bob, carl := policy.Attributes{"user": "bob", "plan": "pro"}, policy.Attributes{"user": "carl", "contract": "40"}
	spend := func(r policy.Request, n int) (passed int) {
		for i := range n {
			if take(t, fleet[i%processes], r, 1).Allowed {
				passed++
			}
		}
		return passed
	}
	used := func(rule, user, plan string) int {
		d := peek(t, shared, rule, plan, user)
		return d.Limit.Capacity() - d.Remaining + d.Debt
	}
	require.Equal(t, 20, spend(ann, 20))
	force(failover.StateOpen)
	assert.Equal(t, [3]int{60, 80, 40}, [3]int{spend(ann, 60), spend(bob, 80), spend(carl, 100)})
	force(failover.StateClosed)
	require.Eventually(t, func() bool {
		spend(policy.Attributes{"user": "dora"}, processes)
		return used("calls", "ann", "") >= 80 && used("calls", "bob", "pro") >= 80 && used("weight", "carl", "") >= 7*40
	}, time.Minute, 100*time.Millisecond)
	assert.Equal(t, []int{80, 80}, []int{used("calls", "ann", ""), used("calls", "bob", "pro")})
	assert.InDelta(t, 7*80, used("weight", "ann", ""), 7)
	assert.InDelta(t, 7*40, used("weight", "carl", ""), 7)
	d := take(t, fleet[0], carl, 1)
	assert.False(t, d.Allowed || d.Degraded, "the attribute's limit is used up: %+v", d)
	assert.Equal(t, processes*3, used("seen", "bob", ""), "a shadow counts what it would have let pass")
}

// Tenants sharing a limit owe nothing for an outage: the units they spent lay idle or
// were contested at the time. The other rules are charged, and no failure is logged.
func TestARuleWithShareOwesNothingForAnOutage(t *testing.T) {
	shared, local, l := failingOver(t, redistest.Start(t).Addr,
		"rules:\n- {name: calls, key: user, limit: fixed-window 1000/d}\n- {name: up, key: user, limit: token-bucket 100/s burst 100, share: 1}\n", 1)
	l.Force(failover.StateOpen)
	for range 50 {
		require.True(t, l.Allow(ann, 1))
	}
	settle(t, l, ann, 20, 7)
	require.NoError(t, local.Repay(t.Context()))
	assert.Equal(t, 1000-57, peek(t, shared, "calls", "", "ann").Remaining)
}
