package policyredis_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/crossings"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// notices collects the notices of a fleet.
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

// TestAFleetCountsLimitsOfAttributesReplacesRulesAndNotifies: two processes decide in turn, by rules that a file has of late.
func TestAFleetCountsLimitsOfAttributesReplacesRulesAndNotifies(t *testing.T) {
	const text = `rules:
- {name: bulk, match: {route: /bulk/}, key: user, limit: calendar 500/hour UTC, instead: [api]}
- {name: api, key: user, limit: calendar 10/hour UTC, limit_from: quota, notify: [80%, 100%]}
`
	client := local(t)
	var noted notices
	fleet := []*policy.Policies{over(t, client, text, policyredis.Options{}, noted.of(0)), over(t, client, text, policyredis.Options{}, noted.of(1))}
	if left := time.Until(time.Now().Truncate(time.Hour).Add(time.Hour)); left < time.Minute {
		time.Sleep(left + time.Second) // the server's clock decides when an hour ends
	}
	for _, row := range []struct {
		user, quota, path string
		passed            int // of 60
	}{
		{"ann", "", "/", 10},
		{"ann", "", "/bulk/x", 60}, // another rule takes the place
		{"bob", "30", "/", 30},
		{"cid", "9999999999999999", "/", 10}, // Redis cannot count that many: the rule's own limit
	} {
		n := 0
		for i := range 60 {
			if take(t, fleet[i%2], policy.Attributes{"user": row.user, "quota": row.quota, "path": row.path}, 1).Allowed {
				n++
			}
		}
		assert.Equal(t, row.passed, n, row)
		if crossed := noted.take(); row.user == "ann" && row.path == "/" {
			assert.Equal(t, []string{"1 ann 80", "1 ann 100", "0 ann 100"}, crossed, "the charges that cross, and the first denial by the other process")
		} else if row.user == "ann" {
			assert.Empty(t, crossed)
		}
	}
	assert.EqualValues(t, 30, fleet[0].Stats().BadLimits)
	dan, eva := policy.Attributes{"user": "dan", "path": "/"}, policy.Attributes{"user": "eva", "path": "/"}
	require.NoError(t, reserve(t, fleet[0], dan, 1).Settle(9))
	assert.Equal(t, []string{"0 dan 80"}, noted.take())
	held := reserve(t, fleet[0], eva, 9)
	require.False(t, take(t, fleet[0], eva, 2).Allowed)
	require.NoError(t, held.Settle(1))
	assert.Equal(t, []string{"0 eva 100"}, noted.take(), "of the denial, not of the estimate")
	require.NoError(t, fleet[1].Adjust(t.Context(), policy.Subject{Rule: "api", Key: []string{"dan"}}, 5))
	assert.Equal(t, []string{"1 dan 100"}, noted.take())
	for _, p := range fleet {
		assert.Equal(t, 4, peek(t, p, "api", "dan").Debt, "14 of 10 were charged")
	}
	d := take(t, fleet[0], dan, 1)
	assert.Equal(t, 4, d.Debt)
	assert.False(t, d.Allowed)
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
				request := func(user, plan string) policy.Attributes { return policy.Attributes{"user": user, "plan": plan} }
				processes = append(processes, crossings.Process{
					Take: func(user, plan string, cost int) bool { return take(t, p, request(user, plan), cost).Allowed },
					Reserve: func(user, plan string, cost int) (func(int), bool) {
						res := reserve(t, p, request(user, plan), cost)
						return func(actual int) { require.NoError(t, res.Settle(actual)) }, res.Allowed
					},
					Adjust: func(user, plan string, delta int) {
						require.NoError(t, p.Adjust(t.Context(), policy.Subject{Rule: "quota", Key: []string{user}, Plan: plan}, delta))
					},
					Reset: func(user string) {
						require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "quota", Key: []string{user}}))
					},
				})
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
