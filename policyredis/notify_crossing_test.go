package policyredis_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"testing/synctest"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/crossings"
	"github.com/weir-go/ratelimit/internal/dev/redistest"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/policyredis"
)

// TestAFleetHasOneNoticeOfEachCrossing plays hours of takes, reservations that another process settles beside, adjustments, resets and changes
// of plan, by eight processes.
func TestAFleetHasOneNoticeOfEachCrossing(t *testing.T) {
	testsize.Sequential(t)
	server := redistest.Start(t)
	for seed := range testsize.Of[uint64](1, 20) {
		synctest.Test(t, func(t *testing.T) { playFleet(t, server, testsize.Seed(seed)) })
	}
}

func playFleet(t *testing.T, server *redistest.Server, seed uint64) {
	clock := bubbleTime{time.Now()}
	client := redis.NewClient(&redis.Options{Addr: server.Addr, MaxRetries: -1})
	var noted []string
	var processes []crossings.Process
	for i := range 8 {
		p, err := policy.New(parsed(t, `rules: [{name: quota, key: user, limit: calendar 100/hour UTC, plans: {pro: calendar 300/hour UTC}, notify: [50%, 80%, 100%]}]`), &policy.Options{
			Engine:      policyredis.New(client, &policyredis.Options{Prefix: fmt.Sprint("seed", seed, ":"), Timeout: time.Minute, Hooks: []redis.Hook{onClock{clock}}}),
			OnThreshold: func(at policy.Threshold) { noted = append(noted, fmt.Sprintf("%d %s %d", i, at.Key, at.Percent)) },
		})
		require.NoError(t, err)
		request := func(user, plan string) policy.Attributes { return policy.Attributes{"user": user, "plan": plan} }
		processes = append(processes, crossings.Process{
			Take: func(user, plan string, cost int) bool {
				d, err := p.Take(t.Context(), request(user, plan), cost)
				require.NoError(t, err)
				return d.Allowed
			},
			Reserve: func(user, plan string, cost int) (func(int), bool) {
				res, err := p.Reserve(t.Context(), request(user, plan), cost, 0)
				require.NoError(t, err)
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
	n := crossings.Play(t, seed, crossings.Fleet{
		Processes: processes,
		Advance:   func() { time.Sleep(time.Duration(random.Int64N(int64(4 * time.Second)))) },
		Window:    func() int { return (clockEpoch + int(clock.Now()/time.Second)) / 3600 },
		Notices:   func() []string { all := noted; noted = nil; return all },
		Stored:    true,
	}, 20, 5000)
	assert.Greater(t, n, 100)
	require.NoError(t, client.Close())
	time.Sleep(time.Minute) // a pool that is closed tries no server again
}
