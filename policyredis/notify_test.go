package policyredis_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"

	"github.com/weir-go/ratelimit/internal/dev/crossings"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// notices collects a fleet's notices.
type notices []string

func (n *notices) of(process int) policy.Options {
	return policy.Options{OnThreshold: func(at policy.Threshold) { *n = append(*n, fmt.Sprintf("%d %s %d", process, at.Key, at.Percent)) }}
}

// take returns the notices since the last call.
func (n *notices) take() []string {
	all := *n
	*n = nil
	return all
}

// TestAFleetCountsLimitsOfAttributes: two processes decide in turn.
func TestAFleetCountsLimitsOfAttributes(t *testing.T) {
	const text = "rules: [{name: api, key: user, limit: fixed-window 10/30d, limit_from: quota}]"
	client := local(t)
	fleet := []*policy.Policies{over(t, client, text, policyredis.Options{}, policy.Options{}), over(t, client, text, policyredis.Options{}, policy.Options{})}
	for quota, want := range map[string]int{"": 10, "30": 30, "9999999999999999": 10} { // Redis cannot count that many: the rule's own limit
		r, passed := policy.Attributes{"user": "user of " + quota, "quota": quota}, 0
		for i := range 60 {
			if take(t, fleet[i%2], r, 1).Allowed {
				passed++
			}
		}
		assert.Equal(t, want, passed, quota)
	}
	assert.EqualValues(t, 30, fleet[0].Stats().BadLimits)
}

// TestAFleetHasOneNoticeOfEachCrossing plays hours of takes, reservations that another process settles beside, adjustments, resets and changes
// of plan, by eight processes.
func TestAFleetHasOneNoticeOfEachCrossing(t *testing.T) {
	testsize.Sequential(t)
	server := redistest.Start(t)
	for i := range testsize.Of[uint64](1, 20) {
		seed := testsize.Seed(i)
		var noted notices
		const text = `rules: [{name: quota, key: user, limit: calendar 100/hour UTC, plans: {pro: calendar 300/hour UTC}, notify: [50%, 80%, 100%]}]`
		fleet(t, server, text, 8, policyredis.Options{Prefix: fmt.Sprint("seed", seed, ":")}, noted.of, func(t *testing.T, all []*policy.Policies) {
			began := time.Now().Add(-time.Second) // when the clock stood at 0
			var processes []crossings.Process
			for _, p := range all {
				processes = append(processes, crossings.ProcessOf[policy.Request](t, p, func(user, plan string) policy.Request {
					return policy.Attributes{"user": user, "plan": plan}
				}, func(user, plan string) policy.Request {
					return policy.Subject{Rule: "quota", Key: []string{user}, Plan: plan}
				}))
			}
			random := rand.New(rand.NewPCG(seed, 1))
			assert.Greater(t, crossings.Play(t, seed, crossings.Fleet{
				Processes: processes,
				Advance:   func() { time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second)))) },
				Window:    func() int { return (clockEpoch + int(time.Since(began)/time.Second)) / 3600 },
				Notices:   noted.take,
				Stored:    true,
			}, 20, 5000), 100)
		})
	}
}
