package sqltest

import (
	"fmt"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit/internal/dev/crossings"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
)

// TestAFleetOnADatabaseHasOneNoticeOfEachCrossing plays four processes. They take, settle each other's
// reservations, adjust, reset and change plans. The clock is the database's, and all calls are in one window.
func TestAFleetOnADatabaseHasOneNoticeOfEachCrossing(t *testing.T) {
	testsize.Sequential(t)
	for _, server := range []string{"postgresql", "mariadb"} {
		t.Run(server, func(t *testing.T) {
			t.Parallel()
			made := engines[server].open(t)
			for seed := range testsize.Of[uint64](1, 10) {
				playFleetOnDatabase(t, made, testsize.Seed(seed))
			}
		})
	}
}

func playFleetOnDatabase(t *testing.T, made func(string) policy.Engine, seed uint64) {
	var noted []string
	var processes []crossings.Process
	for i := range 4 {
		p, err := policy.New(parsedRules(t, `- {name: quota, key: user, limit: calendar 100/year UTC, plans: {pro: calendar 300/year UTC}, notify: [50%, 80%, 100%]}`), &policy.Options{
			Engine:      made(fmt.Sprint("seed", seed)),
			OnThreshold: func(at policy.Threshold) { noted = append(noted, fmt.Sprintf("%d %s %d", i, at.Key, at.Percent)) },
		})
		require.NoError(t, err)
		request := func(user, plan string) policy.Request { return policy.Attributes{"user": user, "plan": plan} }
		subject := func(user, plan string) policy.Request {
			return policy.Subject{Rule: "quota", Key: []string{user}, Plan: plan}
		}
		processes = append(processes, crossings.ProcessOf[policy.Request](t, p, request, subject))
	}
	n := crossings.Play(t, seed, crossings.Fleet{
		Processes: processes,
		Advance:   func() {},
		Window:    func() int { return 0 },
		Notices:   func() []string { all := noted; noted = nil; return all },
		Stored:    true,
	}, 40, 1500)
	assert.Greater(t, n, 50)
}
