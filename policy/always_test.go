package policy_test

import (
	"context"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// onClock returns policies in memory, and their clock.
func onClock(t testing.TB, rules string) (*policy.Policies, *ratelimittest.Clock) {
	t.Helper()
	clock := new(ratelimittest.Clock)
	p, err := policy.New(parsed(t, "rules:\n"+rules), &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})
	require.NoError(t, err)
	return p, clock
}

// standing returns a rule's remaining budget with one key, and its debt.
func standing(t testing.TB, p *policy.Policies, rule string, key ...string) [2]int {
	t.Helper()
	d, err := p.Peek(t.Context(), policy.Subject{Rule: rule, Key: key}, 0)
	require.NoError(t, err)
	return [2]int{d.Remaining, d.Debt}
}

// An AI gateway decides on a cost of 0 before a stream, and charges the tokens when the stream is done.
func TestAStreamBeginsWithACostOfZeroAndIsChargedWhenItIsDone(t *testing.T) {
	p, clock := onClock(t, "- {name: tokens, key: user, limit: fixed-window 1000/m, charge: always}\n")
	r := attrs{"user": "ann"}
	stream := func(tokens int) (passed bool) {
		if !p.Allow(r, 0) {
			return false
		}
		d, err := p.Take(t.Context(), r, tokens)
		if err != nil {
			require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
			assert.False(t, d.Allowed)
		}
		return true
	}
	passed := 0
	for range 100 {
		if stream(300) {
			passed++
		}
	}
	assert.Equal(t, 4, passed)
	assert.Equal(t, [2]int{0, 200}, standing(t, p, "tokens", "ann"))
	d, err := p.Take(t.Context(), r, 0)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, time.Minute, d.RetryAfter)
	clock.Advance(time.Minute)
	assert.Equal(t, [2]int{800, 0}, standing(t, p, "tokens", "ann"))

	require.True(t, stream(30_000), "it was asked for, and is charged although it is above the capacity")
	assert.Equal(t, [2]int{0, 29_200}, standing(t, p, "tokens", "ann"))
	clock.Advance(29 * time.Minute)
	assert.False(t, p.Allow(r, 0))
	clock.Advance(time.Minute)
	assert.True(t, p.Allow(r, 0))
	assert.Equal(t, [2]int{800, 0}, standing(t, p, "tokens", "ann"))
	assert.True(t, p.Allow(attrs{"user": "bob"}, 0))
}

func TestADeniedCostIsChargedAndOtherRulesAreNot(t *testing.T) {
	p, _ := onClock(t, `- {name: tokens, limit: fixed-window 10/m, charge: always}
- {name: team, limit: fixed-window 100/m, charge: always}
- {name: requests, limit: fixed-window 3/h, cost: 1}
- {name: trial, limit: fixed-window 5/m, shadow: true, charge: always}
`)
	take := func(cost int) ratelimit.Decision {
		t.Helper()
		d, err := p.Take(t.Context(), attrs{}, cost)
		require.NoError(t, err)
		return d
	}
	all := func(tokens, team, requests, trial [2]int) {
		t.Helper()
		assert.Equal(t, [4][2]int{tokens, team, requests, trial},
			[4][2]int{standing(t, p, "tokens"), standing(t, p, "team"), standing(t, p, "requests"), standing(t, p, "trial")})
	}
	assert.True(t, take(7).Allowed)
	all([2]int{3, 0}, [2]int{93, 0}, [2]int{2, 0}, [2]int{0, 2})
	d := take(7)
	assert.False(t, d.Allowed)
	assert.Equal(t, []any{0, 4, 2 * time.Minute}, []any{d.Remaining, d.Debt, d.RetryAfter}, "the figures count the charge: a retry after a minute would be denied")
	all([2]int{0, 4}, [2]int{86, 0}, [2]int{2, 0}, [2]int{0, 9})
	assert.False(t, take(0).Allowed)
	all([2]int{0, 4}, [2]int{86, 0}, [2]int{2, 0}, [2]int{0, 9})

	require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "tokens"}))
	assert.True(t, take(0).Allowed, "the shadow and requests deny nothing")
	assert.True(t, take(1).Allowed)
	assert.True(t, take(1).Allowed)
	d = take(1)
	assert.False(t, d.Allowed, "by requests")
	assert.Equal(t, time.Hour, d.RetryAfter)
	all([2]int{7, 0}, [2]int{83, 0}, [2]int{0, 0}, [2]int{0, 12})
	assert.True(t, take(0).Allowed, "a rule of another kind allows a cost of 0")
}

func TestAReservationUnderARuleThatIsChargedAlways(t *testing.T) {
	p, _ := onClock(t, "- {name: tokens, limit: fixed-window 100/m, charge: always}\n- {name: requests, limit: fixed-window 10/h, cost: 1}\n")
	reserve := func(cost int) *ratelimit.Reservation {
		t.Helper()
		res, err := p.Reserve(t.Context(), attrs{}, cost, 0)
		require.NoError(t, err)
		return res
	}
	res := reserve(60)
	require.True(t, res.Allowed)
	require.NoError(t, res.Settle(90))
	assert.Equal(t, [2]int{10, 0}, standing(t, p, "tokens"))
	res = reserve(60)
	require.False(t, res.Allowed)
	assert.Equal(t, 50, res.Debt)
	require.NoError(t, res.Settle(1), "it has no effect: nothing was reserved")
	require.NoError(t, res.Cancel())
	assert.Equal(t, [2]int{0, 50}, standing(t, p, "tokens"))
	assert.False(t, reserve(0).Allowed)
	assert.Equal(t, [2]int{9, 0}, standing(t, p, "requests"))
	require.NoError(t, p.Reset(t.Context(), policy.Subject{Rule: "tokens"}))
	res = reserve(60)
	require.NoError(t, res.Cancel())
	assert.Equal(t, [2]int{100, 0}, standing(t, p, "tokens"), "a caller gives back what was allowed")
}

// A cost of 0 is denied only while nothing is left, whatever the algorithm, the grace and the plan.
func TestACostOfZeroIsDeniedWhileNothingIsLeft(t *testing.T) {
	for _, test := range []struct {
		rule       string
		fits       int
		retryAfter time.Duration
	}{
		{"limit: token-bucket 10/s burst 5", 5, 100 * time.Millisecond},
		{"limit: leaky-bucket 10/s queue 5", 5, 0},
		{"limit: fixed-window 5/m", 5, time.Minute},
		{"limit: sliding-log 5/m", 5, time.Minute},
		{"limit: sliding-counter 5/m", 5, 0},
		{"limit: fixed-window 50/m, grace: 10%", 55, time.Minute},
		{"limit: fixed-window 5/m, plans: {big: fixed-window 7/m}", 7, time.Minute},
	} {
		p, clock := onClock(t, "- {name: a, charge: always, "+test.rule+"}\n- {name: b, limit: fixed-window 1/m, cost: n, optional: true}\n")
		r := attrs{"plan": "big"}
		for i := range test.fits {
			require.True(t, p.Allow(r, 0), "%s %d", test.rule, i)
			require.True(t, p.Allow(r, 1), "%s %d", test.rule, i)
		}
		peek, err := p.Peek(t.Context(), r, 0)
		require.NoError(t, err)
		assert.False(t, peek.Allowed, test.rule)
		d, err := p.Take(t.Context(), r, 0)
		require.NoError(t, err)
		assert.False(t, d.Allowed, test.rule)
		assert.Positive(t, d.RetryAfter, test.rule)
		assert.Equal(t, d.RetryAfter, peek.RetryAfter, test.rule)
		if test.retryAfter > 0 {
			assert.Equal(t, test.retryAfter, d.RetryAfter, test.rule)
		}
		ex, err := p.Explain(r, 0)
		require.NoError(t, err)
		assert.False(t, ex.Rules[0].Decision.Allowed, test.rule)
		clock.Advance(d.RetryAfter - 1)
		assert.False(t, p.Allow(r, 0), test.rule)
		clock.Advance(1)
		assert.True(t, p.Allow(r, 0), test.rule)
		assert.Equal(t, uint64(0), p.Stats().BadLimits)
	}
	p, _ := onClock(t, "- {name: a, charge: always, limit: fixed-window 5/m, plans: {off: blocked, all: unlimited}}\n")
	assert.False(t, p.Allow(attrs{"plan": "off"}, 0))
	assert.True(t, p.Allow(attrs{"plan": "all"}, 0))
	d, err := p.Peek(t.Context(), attrs{"plan": "off"}, 0)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
}

// A cost from an attribute may be 0 for one rule while other rules are
// charged. If the first rule is used up, the others are charged nothing.
func TestOneRuleIsChargedNothingAndOthersTheirCost(t *testing.T) {
	p, _ := onClock(t, "- {name: tokens, limit: fixed-window 10/m, charge: always, cost: tokens}\n- {name: requests, limit: fixed-window 9/h, cost: 1}\n- {name: bytes, limit: fixed-window 99/h, charge: always, cost: bytes}\n")
	take := func(tokens, bytes string) bool { return p.Allow(attrs{"tokens": tokens, "bytes": bytes}, 1) }
	assert.True(t, take("0", "5"))
	assert.True(t, take("10", "5"))
	assert.False(t, take("0", "5"))
	assert.False(t, take("3", "0"))
	assert.Equal(t, [2]int{0, 3}, standing(t, p, "tokens"))
	assert.Equal(t, [2]int{7, 0}, standing(t, p, "requests"))
	assert.Equal(t, [2]int{84, 0}, standing(t, p, "bytes"))
}

func TestWaitUnderARuleThatIsChargedAlways(t *testing.T) {
	p, err := policy.New(parsed(t, "rules:\n- {name: a, limit: token-bucket 100/s burst 5, charge: always}\n- {name: b, limit: token-bucket 1/h burst 1, charge: always, shadow: true}\n"), nil)
	require.NoError(t, err)
	require.True(t, p.Allow(attrs{}, 5))
	require.NoError(t, p.Wait(t.Context(), attrs{}, 0))
	require.NoError(t, p.Wait(t.Context(), attrs{}, 2))
	assert.Equal(t, [2]int{0, 6}, standing(t, p, "b"))
	require.NoError(t, p.Adjust(t.Context(), policy.Subject{Rule: "a"}, 100_000))
	var late *ratelimit.LateError
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	require.ErrorAs(t, p.Wait(ctx, attrs{}, 0), &late)
	assert.Equal(t, "a", late.Limit.Name)
}

// Reports contain the decision and each rule's part as they were. The same goes for denials and notices.
func TestReportsOfARuleThatIsChargedAlways(t *testing.T) {
	var last policy.Decision
	var notices []int
	clock := new(ratelimittest.Clock)
	p, err := policy.New(parsed(t, "rules:\n- {name: a, limit: fixed-window 10/m, charge: always, notify: [80%, 100%]}\n- {name: b, limit: fixed-window 5/m}\n"), &policy.Options{
		Engine: policy.Memory(&policy.MemoryOptions{Clock: clock}), OnDecision: func(d policy.Decision) { last = d },
		OnThreshold: func(t policy.Threshold) { notices = append(notices, t.Percent) },
	})
	require.NoError(t, err)
	for _, cost := range []int{4, 4, 0, 4, 0} {
		_, _ = p.Take(t.Context(), attrs{}, cost)
	}
	assert.Equal(t, []int{80, 100}, notices)
	require.Len(t, last.Rules, 2)
	assert.False(t, last.Decision.Allowed)
	assert.Equal(t, []any{false, true, 0, 2}, []any{last.Rules[0].Decision.Allowed, last.Rules[1].Decision.Allowed, last.Rules[0].Decision.Remaining, last.Rules[0].Decision.Debt})
	denied := map[string]int64{}
	for _, d := range p.Denied(9) {
		denied[d.Rule] = d.Count
	}
	assert.Equal(t, map[string]int64{"a": 2, "b": 2}, denied)
}

func TestAChargeThatARuleCannotMakeIsAnError(t *testing.T) {
	for rule, want := range map[string]string{
		"charge: sometimes": `rules[0].charge: "sometimes", want always`,
		"charge: ''":        `rules[0].charge: "", want always`,
		"charge: always, limit: concurrent 5 hold 1m":                            `rules[0].charge: always, and the rule has a limit of units in use`,
		"charge: always, plans: {a: concurrent 5 hold 1m}":                       `rules[0].charge: always, and the rule has a limit of units in use`,
		"charge: always, key: user, share: 1, limit: token-bucket 1/s burst 100": `rules[0].charge: always, and the rule has share 1`,
	} {
		text := "rules:\n- {name: a, " + rule
		if !strings.Contains(rule, "limit:") {
			text += ", limit: fixed-window 1/s"
		}
		_, err := policy.Parse([]byte(text + "}\n"))
		require.ErrorContains(t, err, want, rule)
	}
}

func TestAStandInOwesWhatARuleIsChargedAlways(t *testing.T) {
	set := parsed(t, "rules:\n- {name: a, limit: fixed-window 10/h, charge: always}\n- {name: b, limit: fixed-window 10/h}\n")
	local, err := policy.New(set, nil)
	require.NoError(t, err)
	shared, err := policy.New(set, &policy.Options{StandIn: local})
	require.NoError(t, err)
	for range 2 {
		_, err := local.Take(t.Context(), attrs{}, 7)
		require.NoError(t, err)
	}
	res, err := local.Reserve(t.Context(), attrs{}, 3, 0)
	require.NoError(t, err)
	require.False(t, res.Allowed)
	require.NoError(t, local.Repay(t.Context()))
	assert.Equal(t, [2]int{0, 7}, standing(t, shared, "a"))
	assert.Equal(t, [2]int{3, 0}, standing(t, shared, "b"))
}

func TestCallersAtOnceAreAllCharged(t *testing.T) {
	p, _ := onClock(t, "- {name: tokens, key: user, limit: token-bucket 1/h burst 500, charge: always}\n- {name: requests, key: user, limit: fixed-window 100/h, cost: 1}\n")
	var sum, passed atomic.Int64
	var callers sync.WaitGroup
	for i := range 8 {
		callers.Go(func() {
			for k := range 200 {
				cost := (i + k) % 5
				d, err := p.Take(t.Context(), attrs{"user": "ann"}, cost)
				assert.NoError(t, err)
				sum.Add(int64(cost))
				if d.Allowed && cost > 0 {
					passed.Add(1)
				}
			}
		})
	}
	callers.Wait()
	assert.Equal(t, [2]int{0, int(sum.Load()) - 500}, standing(t, p, "tokens", "ann"))
	assert.Equal(t, [2]int{100 - int(passed.Load()), 0}, standing(t, p, "requests", "ann"))
}

func TestABlockedPlanIsDeniedWhateverItsCost(t *testing.T) {
	p, _ := onClock(t, "- {name: tokens, limit: fixed-window 5/m, plans: {off: blocked}, charge: always}\n- {name: team, limit: fixed-window 9/m, charge: always}\n")
	off := attrs{"plan": "off"}
	for _, cost := range []int{0, 3} {
		d, err := p.Take(t.Context(), off, cost)
		assert.False(t, d.Allowed)
		if cost > 0 {
			require.ErrorIs(t, err, ratelimit.ErrBlocked)
		}
		assert.False(t, p.Allow(off, cost))
	}
	assert.Equal(t, [2]int{5, 0}, standing(t, p, "tokens"))
	assert.Equal(t, [2]int{3, 0}, standing(t, p, "team"))
}
