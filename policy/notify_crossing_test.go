package policy_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/crossings"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// TestEachCrossingIsOneNotice makes hours of takes, reservations, settlements, adjustments, resets and changes of plan.
func TestEachCrossingIsOneNotice(t *testing.T) {
	testsize.Sequential(t)
	for seed := range testsize.Of[uint64](3, 60) {
		clock := new(ratelimittest.Clock)
		clock.SetWall(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC))
		var noted []string
		p := ratelimit.Must(policy.New(parsed(t, `rules: [{name: quota, key: user, limit: calendar 100/hour UTC, plans: {pro: calendar 300/hour UTC}, notify: [50%, 80%, 100%]}]`), &policy.Options{
			Engine:      policy.Memory(&policy.MemoryOptions{Clock: clock}),
			OnThreshold: func(at policy.Threshold) { noted = append(noted, fmt.Sprintf("0 %s %d", at.Key, at.Percent)) },
		}))
		request := func(user, plan string) policy.Request { return policy.Attributes{"user": user, "plan": plan} }
		subject := func(user, plan string) policy.Request {
			return policy.Subject{Rule: "quota", Key: []string{user}, Plan: plan}
		}
		random := rand.New(rand.NewPCG(testsize.Seed(seed), 1))
		n := crossings.Play(t, testsize.Seed(seed), crossings.Fleet{
			Processes: []crossings.Process{crossings.ProcessOf[policy.Request](t, p, request, subject)},
			Advance:   func() { clock.Advance(time.Duration(random.Int64N(int64(4 * time.Second)))) },
			Window:    func() int { return clock.Wall().Hour() + 24*clock.Wall().Day() },
			Notices:   func() []string { all := noted; noted = nil; return all },
		}, 20, 10_000)
		assert.Greater(t, n, 100)
	}
}

func TestAMillionCallsOfManyKeysRepeatNoNotice(t *testing.T) {
	testsize.Sequential(t)
	keys := testsize.Of(70_000, 100_000) // more keys than are remembered
	noted := map[policy.Threshold]int{}
	p := ratelimit.Must(policy.New(parsed(t, `rules: [{name: quota, key: user, limit: fixed-window 10/h, notify: [80%, 100%]}]`), &policy.Options{
		Engine:      policy.Memory(&policy.MemoryOptions{Clock: new(ratelimittest.Clock), MaxKeys: 2 * keys}),
		OnThreshold: func(at policy.Threshold) { noted[policy.Threshold{Key: at.Key, Percent: at.Percent}]++ },
	}))
	users := make([]policy.Attributes, keys)
	for i := range users {
		users[i] = policy.Attributes{"user": fmt.Sprint("user", i)}
	}
	for range 10 {
		for _, user := range users {
			require.True(t, p.Allow(user, 1))
		}
	}
	require.Len(t, noted, 2*keys)
	for at, times := range noted {
		require.Equal(t, 1, times, at)
	}
}

// A gateway has many requests at a time. Their estimates add up to nearly the whole quota, but only 2 % is spent.
func TestOpenEstimatesOfOtherReservationsAreNoSpending(t *testing.T) {
	n := newNotifying(t, `- {name: quota, key: user, limit: fixed-window 1000/h, notify: [50%, 80%, 100%]}`)
	ann := policy.Attributes{"user": "ann"}
	reserve := func() *ratelimit.Reservation {
		res, err := n.Reserve(t.Context(), ann, 80, 0)
		require.NoError(t, err)
		require.True(t, res.Allowed)
		return res
	}
	var open []*ratelimit.Reservation
	for range 11 {
		open = append(open, reserve())
	}
	for spent := 2; spent < 500; spent += 2 {
		require.NoError(t, open[0].Settle(2))
		require.Empty(t, n.take(), "%d of 1000 are spent", spent)
		if open = open[1:]; spent+(len(open)+1)*80 <= 1000 {
			open = append(open, reserve())
		}
		if len(open) == 0 {
			open = append(open, reserve())
		}
	}
	require.NoError(t, open[0].Settle(2))
	require.Len(t, n.take(), 1, "500 of 1000")
}

// An operator or NTP sets the wall clock. The clock for budgets runs on.
func TestANewWindowOfAWallClockThatIsSetIsNotifiedOf(t *testing.T) {
	n := newNotifying(t, `- {name: quota, key: user, limit: calendar 10/day UTC, notify: [80%, 100%]}`)
	n.clock.SetWall(time.Date(2026, 11, 29, 10, 0, 0, 0, time.UTC))
	for range 2 {
		for range 12 {
			n.Allow(policy.Attributes{"user": "ann"}, 1)
		}
		assert.Equal(t, []string{"quota ann 80%, 2 left", "quota ann 100%, 0 left"}, n.take())
		n.clock.SetWall(time.Date(2026, 11, 30, 10, 0, 0, 0, time.UTC))
		n.clock.Advance(2 * time.Minute) // so that the limiter reads the wall clock again
	}
}

func TestARestOfAReservationIsSettledInALaterWindowAndNotifiesNothing(t *testing.T) {
	n := newNotifying(t, notifyRules)
	ann := policy.Attributes{"user": "ann"}
	res, err := n.Reserve(t.Context(), ann, 90, 0)
	require.NoError(t, err)
	n.clock.Advance(2 * time.Hour)
	later, err := n.Reserve(t.Context(), ann, 70, 0)
	require.NoError(t, err)
	require.NoError(t, res.Settle(85), "of the window that has passed")
	assert.Empty(t, n.take())
	require.True(t, n.Allow(ann, 20))
	require.NoError(t, later.Settle(1))
	assert.Empty(t, n.take(), "21 of 100")
}

// A charge denied by another rule crosses no threshold. Neither does a charge given back by a Wait.
func TestWhatOtherRulesDenyNotifiesNothing(t *testing.T) {
	n := newNotifying(t, `
- {name: quota, key: user, limit: fixed-window 100/h, notify: [80%, 100%]}
- {name: rate, key: user, limit: fixed-window 5/h}
- {name: trial, key: user, limit: fixed-window 10/h, shadow: true, notify: 50%}`)
	ann := policy.Attributes{"user": "ann"}
	require.True(t, n.Allow(ann, 5))
	require.Equal(t, []string{"trial ann 50%, 5 left"}, n.take())
	for range 100 {
		require.False(t, n.Allow(ann, 5))
	}
	assert.Empty(t, n.take())
}

func TestAGrantBeforeACostNotifiesOfTheRealCrossing(t *testing.T) {
	n := newNotifying(t, `- {name: quota, key: user, limit: fixed-window 100/h, grace: 10%, notify: [80%, 100%]}`)
	ann := policy.Attributes{"user": "ann"}
	require.True(t, n.Allow(ann, 79))
	assert.Empty(t, n.take())
	require.True(t, n.Allow(ann, 1))
	assert.Equal(t, []string{"quota ann 80%, 20 left"}, n.take())
	require.True(t, n.Allow(ann, 25))
	assert.Equal(t, []string{"quota ann 100%, 0 left"}, n.take(), "105 of 100, and of the grace")
	require.NoError(t, n.Adjust(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, -50))
	require.True(t, n.Allow(ann, 25))
	assert.Equal(t, []string{"quota ann 80%, 20 left"}, n.take(), "from 55 to 80: what was granted is used")
}
