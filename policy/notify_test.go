package policy_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// notifying records its policies' notices.
type notifying struct {
	*policy.Policies
	clock *ratelimittest.Clock
	mu    sync.Mutex
	noted []string
}

func newNotifying(t *testing.T, rules string) *notifying {
	t.Helper()
	n := &notifying{clock: new(ratelimittest.Clock)}
	n.Policies = ratelimit.Must(policy.New(parsed(t, "rules:\n"+rules), &policy.Options{
		Engine: policy.Memory(&policy.MemoryOptions{Clock: n.clock}),
		OnThreshold: func(at policy.Threshold) {
			n.mu.Lock()
			defer n.mu.Unlock()
			n.noted = append(n.noted, fmt.Sprintf("%s %s %d%%, %d left", at.Rule, at.Key, at.Percent, at.Decision.Remaining))
			// no lock is held
			if _, err := n.Peek(context.Background(), policy.Subject{Rule: at.Rule, Key: []string{at.Key}}, 1); err != nil {
				n.noted = append(n.noted, err.Error())
			}
		},
	}))
	return n
}

// take returns the notices since the last call.
func (n *notifying) take() []string {
	n.mu.Lock()
	defer n.mu.Unlock()
	noted := n.noted
	n.noted = nil
	return noted
}

const notifyRules = `
- {name: quota, key: user, limit: fixed-window 100/h, notify: [100%, 80%]}
- {name: other, key: user, limit: fixed-window 1000/h}`

func TestAThresholdIsNotifiedOfOnceHoweverItIsReached(t *testing.T) {
	for name, charge := range map[string]func(n *notifying, units int){
		"Allow": func(n *notifying, units int) {
			for range units {
				n.Allow(policy.Attributes{"user": "ann"}, 1)
			}
		},
		"Take": func(n *notifying, units int) {
			for range units {
				_, err := n.Take(t.Context(), policy.Attributes{"user": "ann"}, 1)
				require.NoError(t, err)
			}
		},
		"Wait": func(n *notifying, units int) {
			for range min(units, 100) {
				ctx, cancel := context.WithTimeout(t.Context(), time.Hour)
				_ = n.Wait(ctx, policy.Attributes{"user": "ann"}, 1)
				cancel()
			}
		},
		"Settle": func(n *notifying, units int) {
			for range units {
				res, err := n.Reserve(t.Context(), policy.Attributes{"user": "ann"}, 0, 0)
				require.NoError(t, err)
				require.NoError(t, res.Settle(1))
			}
		},
		"Adjust": func(n *notifying, units int) {
			for range units {
				require.NoError(t, n.Adjust(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, 1))
			}
		},
		"Adjust of a request": func(n *notifying, units int) {
			for range units {
				require.NoError(t, n.Adjust(t.Context(), policy.Attributes{"user": "ann"}, 1))
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNotifying(t, notifyRules)
			for range 3 { // three windows
				charge(n, 79)
				assert.Empty(t, n.take())
				charge(n, 1)
				assert.Equal(t, []string{"quota ann 80%, 20 left"}, n.take())
				charge(n, 19)
				assert.Empty(t, n.take())
				charge(n, 1)
				assert.Equal(t, []string{"quota ann 100%, 0 left"}, n.take())
				if name != "Wait" {
					charge(n, 5)
				}
				assert.Empty(t, n.take())
				n.clock.Advance(2 * time.Hour)
			}
		})
	}
}

func TestALargeChargePassesSeveralThresholds(t *testing.T) {
	n := newNotifying(t, notifyRules)
	res, err := n.Reserve(t.Context(), policy.Attributes{"user": "ann"}, 70, 0)
	require.NoError(t, err)
	assert.Empty(t, n.take())
	require.NoError(t, res.Settle(140))
	assert.Equal(t, []string{"quota ann 80%, 0 left", "quota ann 100%, 0 left"}, n.take())
	require.NoError(t, n.Adjust(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, -60))
	assert.Empty(t, n.take(), "80 are spent still")
	require.NoError(t, n.Adjust(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, 20))
	assert.Equal(t, []string{"quota ann 100%, 0 left"}, n.take(), "what was granted is used up")
	require.NoError(t, n.Reset(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}))
	require.True(t, n.Allow(policy.Attributes{"user": "ann"}, 80))
	assert.Equal(t, []string{"quota ann 80%, 20 left"}, n.take())
	assert.False(t, n.Allow(policy.Attributes{"user": "ann"}, 30))
	assert.Equal(t, []string{"quota ann 100%, 20 left"}, n.take(), "the budget does not suffice")
	assert.False(t, n.Allow(policy.Attributes{"user": "ann"}, 30))
	assert.Empty(t, n.take())
	require.True(t, n.Allow(policy.Attributes{"user": "bob"}, 100))
	assert.Equal(t, []string{"quota bob 80%, 0 left", "quota bob 100%, 0 left"}, n.take())
}

// A gateway reserves an answer's maximum number of tokens, and settles the real number.
func TestAReserveNotifiesOfNothingAndItsSettleOfTheRealCost(t *testing.T) {
	n := newNotifying(t, notifyRules)
	ann := policy.Attributes{"user": "ann"}
	for spent := 0; spent < 78; spent += 2 {
		res, err := n.Reserve(t.Context(), ann, min(90, 100-spent), 0)
		require.NoError(t, err)
		require.True(t, res.Allowed)
		assert.Empty(t, n.take(), "an estimate")
		require.NoError(t, res.Settle(2))
		assert.Empty(t, n.take(), "%d of 100", spent+2)
	}
	res, err := n.Reserve(t.Context(), ann, 20, 0)
	require.NoError(t, err)
	require.NoError(t, res.Cancel())
	assert.Empty(t, n.take())
	res, err = n.Reserve(t.Context(), ann, 20, 0)
	require.NoError(t, err)
	require.NoError(t, res.Settle(3))
	assert.Equal(t, []string{"quota ann 80%, 19 left"}, n.take())
}

// Requests of 20 units cannot use the last 19 units of a budget.
func TestADenialForLackOfBudgetIsANoticeOfAllOfIt(t *testing.T) {
	for name, request := range map[string]func(n *notifying, units int) bool{
		"Allow": func(n *notifying, units int) bool { return n.Allow(policy.Attributes{"user": "ann"}, units) },
		"Take": func(n *notifying, units int) bool {
			d, _ := n.Take(t.Context(), policy.Attributes{"user": "ann"}, units)
			return d.Allowed
		},
		"Reserve": func(n *notifying, units int) bool {
			res, err := n.Reserve(t.Context(), policy.Attributes{"user": "ann"}, units, 0)
			return err == nil && res.Allowed && res.Settle(units) == nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := newNotifying(t, notifyRules)
			for range 2 { // the budget is whole again after each
				require.True(t, request(n, 81))
				assert.Equal(t, []string{"quota ann 80%, 19 left"}, n.take())
				for range 1000 {
					require.False(t, request(n, 20))
				}
				assert.Equal(t, []string{"quota ann 100%, 19 left"}, n.take())
				require.False(t, request(n, 500), "more than the limit can ever hold")
				assert.Empty(t, n.take())
				n.clock.Advance(2 * time.Hour)
				require.False(t, request(n, 101))
				assert.Empty(t, n.take(), "not for lack of budget")
			}
		})
	}
}

// A key moves from a used-up plan to a larger one. It is notified of the larger plan's thresholds.
func TestAKeyWhoseLimitIsRaisedIsNotifiedOfSharesOfTheNewLimit(t *testing.T) {
	n := newNotifying(t, `- {name: quota, key: user, limit: fixed-window 100/h, notify: [80%, 100%], plans: {pro: fixed-window 1000/h, max: fixed-window 2000/h}}`)
	charge := func(plan string, units int) []string {
		for range units {
			n.Allow(policy.Attributes{"user": "ann", "plan": plan}, 1)
		}
		return n.take()
	}
	assert.Equal(t, []string{"quota ann 80%, 20 left", "quota ann 100%, 0 left"}, charge("", 110))
	assert.Empty(t, charge("pro", 699))
	assert.Equal(t, []string{"quota ann 80%, 200 left"}, charge("pro", 1))
	assert.Empty(t, charge("", 3), "a share of a lower limit, of which the key knows")
	assert.Empty(t, charge("max", 500))
	assert.Equal(t, []string{"quota ann 100%, 0 left"}, charge("pro", 2), "1300 of 1000, for the first time")
	assert.Empty(t, charge("max", 299))
	assert.Equal(t, []string{"quota ann 80%, 400 left"}, charge("max", 301)[:1])
}

// While traffic keeps a bucket near a threshold, only the first crossing causes a notice.
func TestABucketNotifiesOnceUntilItIsFull(t *testing.T) {
	n := newNotifying(t, `- {name: api, key: user, limit: token-bucket 10/s burst 100, notify: 80%}`)
	r := policy.Attributes{"user": "ann"}
	require.True(t, n.Allow(r, 85))
	assert.Equal(t, []string{"api ann 80%, 15 left"}, n.take())
	for range 100 {
		n.clock.Advance(time.Second)
		require.True(t, n.Allow(r, 10))
	}
	n.clock.Advance(5 * time.Second)
	require.True(t, n.Allow(r, 49))
	assert.Empty(t, n.take())
	n.clock.Advance(time.Minute)
	require.True(t, n.Allow(r, 79))
	assert.Empty(t, n.take())
	require.True(t, n.Allow(r, 1))
	assert.Equal(t, []string{"api ann 80%, 20 left"}, n.take())
}

func TestManyGoroutinesAreNotifiedOnceForEachKeyAndThreshold(t *testing.T) {
	n := newNotifying(t, notifyRules)
	var all sync.WaitGroup
	for g := range 8 {
		all.Go(func() {
			for i := range 400 {
				user := policy.Attributes{"user": fmt.Sprint("user", (i+g)%20)}
				if i%2 == 0 {
					n.Allow(user, 1)
				} else if res, err := n.Reserve(t.Context(), user, 1, 0); err == nil {
					_ = res.Settle(2)
				}
			}
		})
	}
	all.Wait()
	noted := n.take()
	seen := map[string]int{}
	for _, each := range noted {
		var rule, key, percent string
		_, err := fmt.Sscan(each, &rule, &key, &percent)
		require.NoError(t, err)
		seen[key+percent]++
		assert.Equal(t, 1, seen[key+percent], each)
	}
	assert.Len(t, noted, 40)
}

func TestUntrackedAndDisabledRulesNotifyNothing(t *testing.T) {
	n := newNotifying(t, `
- {name: free, key: user, limit: unlimited, notify: 1%}
- {name: none, key: user, limit: blocked, notify: 1%, shadow: true}
- {name: tiny, key: user, limit: fixed-window 1/h, notify: 50%, shadow: true}
- {name: off, key: user, limit: fixed-window 1/h, notify: 50%, disabled: true}`)
	for range 3 {
		require.True(t, n.Allow(policy.Attributes{"user": "ann"}, 1))
	}
	assert.Equal(t, []string{"tiny ann 50%, 0 left"}, n.take(), "a shadow counts")
	for _, wrong := range []string{"0%", "101%", "80", "08%", "+5%", "80.5%", ""} {
		_, err := policy.Parse([]byte(`rules: [{name: a, limit: blocked, notify: "` + wrong + `"}]`))
		require.ErrorContains(t, err, "want 1% to 100%", wrong)
	}
	_, err := policy.Parse([]byte(`rules: [{name: a, limit: blocked, notify: [80%, 80%]}]`))
	require.ErrorContains(t, err, "notify[0] is the same")
}
