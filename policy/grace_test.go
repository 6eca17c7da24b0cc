package policy_test

import (
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestAGraceDeniesAboveItAndCountsFromTheLimit(t *testing.T) {
	for limit, most := range map[string]int{
		"fixed-window 100/h": 110, "sliding-log 100/h": 110, "calendar 100/month UTC": 110, "token-bucket 1/h burst 100": 110, "leaky-bucket 100/h queue 10": 12,
		"fixed-window 9/h": 9, "fixed-window 19/h": 20, "concurrent 20 hold 1m": 22, "unlimited": 500, "blocked": 0,
	} {
		text := "rules:\n- {name: api, grace: 10%, key: user, limit: unlimited, overrides: [{key: ann, limit: " + limit + "}]}\n- {name: other, limit: fixed-window 1000/h}\n"
		p, _ := made(t, text)
		l := p.Current().Rules[0].Overrides[0].Limit
		r := attrs{"user": "ann"}
		passed := 0
		for range 500 {
			if res, err := p.Reserve(t.Context(), r, 1, time.Hour*24); err != nil || !res.Allowed {
				if l.Algorithm != ratelimit.AlgorithmUnlimited {
					assert.Equal(t, l.Named("api"), res.Decision.Limit, limit)
					assert.Zero(t, res.Remaining, limit)
				}
				break
			} else if passed++; l.Capacity() < 500 {
				want := l.Capacity() - passed
				require.Equal(t, l.Named("api"), res.Decision.Limit, limit)
				require.Equal(t, [2]int{max(0, want), max(0, -want)}, [2]int{res.Remaining, res.Debt}, "%s after %d", limit, passed)
				peeked, err := p.Peek(t.Context(), r, 0)
				require.NoError(t, err)
				require.Equal(t, [2]int{max(0, want), max(0, -want)}, [2]int{peeked.Remaining, peeked.Debt}, "%s after %d", limit, passed)
			}
		}
		if l.Algorithm == ratelimit.AlgorithmLeakyBucket {
			assert.Equal(t, l.Capacity()+1, passed, limit)
			continue
		}
		assert.Equal(t, most, passed, limit)
	}
}

// A rule with a grace applies beside one without, which has less
// or more left. The decision contains the tighter rule's figures.
func TestADecisionHasTheFiguresOfTheTighterRuleBesideAGrace(t *testing.T) {
	p, _ := made(t, "rules:\n- {name: quota, grace: 50%, limit: fixed-window 100/h}\n- {name: api, limit: fixed-window 120/h}\n")
	for i := range 121 {
		d, err := p.Take(t.Context(), attrs{}, 1)
		require.NoError(t, err)
		spent := i + 1
		if spent > 120 {
			assert.False(t, d.Allowed)
			assert.Equal(t, "api", d.Limit.Name)
			break
		}
		require.True(t, d.Allowed)
		require.Equal(t, max(0, 100-spent), d.Remaining)
		require.Equal(t, max(0, spent-100), d.Debt)
		require.Equal(t, "quota", d.Limit.Name, "after %d", spent)
	}
}

func TestASettledReservationMayUseTheGrace(t *testing.T) {
	p, _ := made(t, "rules:\n- {name: quota, grace: 50%, key: user, limit: fixed-window 100/h}\n")
	res, err := p.Reserve(t.Context(), attrs{"user": "ann"}, 90, 0)
	require.NoError(t, err)
	require.NoError(t, res.Settle(170))
	d, err := p.Peek(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, 1)
	require.NoError(t, err)
	assert.False(t, d.Allowed)
	assert.Equal(t, 70, d.Debt)
	require.NoError(t, p.Adjust(t.Context(), policy.Subject{Rule: "quota", Key: []string{"ann"}}, -60))
	require.NoError(t, p.Each(t.Context(), "quota", func(key []string, d ratelimit.Decision) bool {
		assert.Equal(t, 10, d.Debt)
		assert.True(t, d.Allowed)
		assert.Equal(t, 100, d.Limit.Capacity())
		return true
	}))
	ex, err := p.Explain(attrs{"user": "ann"}, 1)
	require.NoError(t, err)
	assert.Equal(t, "quota: fixed-window 100/h (from the rule), key \"ann\", cost 1 of 100 and 50% above; now: allows it, 0 left, 10 above the limit\n", ex.String())
}

// A subscription is used for a month. Notices come at 80 % and 100 % of the quota, and none about the grace.
func TestAQuotaWithAGrace(t *testing.T) {
	text, err := os.ReadFile("examples/apim.yaml")
	require.NoError(t, err)
	set, warnings := policy.Check(text)
	require.NotNil(t, set, "%v", warnings)
	require.Empty(t, warnings)
	clock := new(ratelimittest.Clock)
	clock.SetWall(at("2026-01-15T00:00:00Z"))
	passed := 0
	notices := map[int]int{}
	p := ratelimit.Must(policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock}), OnThreshold: func(n policy.Threshold) { notices[n.Percent] = passed + 1 }}))
	month := func() {
		clear(notices)
		passed = 0
		for range 600 {
			if d, err := p.Take(t.Context(), attrs{"subscription": "s"}, 20); err == nil && d.Allowed {
				passed += 20
			}
			clock.Advance(time.Minute)
		}
		assert.Equal(t, 11_000, passed)
		assert.Len(t, notices, 2)
		assert.InDelta(t, 8_000, notices[80], 20)
		assert.InDelta(t, 10_000, notices[100], 20)
	}
	month()
	clock.Advance(20 * 24 * time.Hour)
	assert.Zero(t, pass(p, attrs{"subscription": "s"}, 1))
	clock.Advance(at("2026-02-15T00:00:00Z").Sub(clock.Wall()))
	month()
}

func TestAGraceIsCheckedWithItsField(t *testing.T) {
	for text, fault := range map[string]string{
		"grace: 10":                           `rules[0].grace: 10 is a number`,
		"grace: 0%":                           `rules[0].grace: "0%"`,
		"grace: 101%":                         `rules[0].grace: "101%"`,
		"grace: '10'":                         `rules[0].grace: "10"`,
		"grace: 10%\n  key: user\n  share: 1": "rules[0].grace: 10%, and the rule has share 1",
	} {
		_, err := policy.Parse([]byte("rules:\n- name: api\n  limit: token-bucket 1/s burst 9\n  " + text + "\n"))
		require.ErrorContains(t, err, fault)
		require.ErrorContains(t, err, "line 4")
	}
	_, err := policy.Parse([]byte("rules:\n- {name: api, limit: blocked, grace: 10%}\n"))
	require.ErrorContains(t, err, "no units, of which to give a grace")
}

// NextAfter is the time until Remaining is above 0. Remaining counts from
// the limit, so a client pacing itself by NextAfter stays below the grace.
func TestNextAfterOfAGraceCountsFromTheLimit(t *testing.T) {
	for limit, want := range map[string]time.Duration{
		"token-bucket 1/s burst 10":  3 * time.Second,
		"fixed-window 10/m":          time.Minute,
		"calendar 10/minute UTC":     time.Minute,
		"sliding-log 10/m":           0, // not known
		"leaky-bucket 1/s queue 10":  0,
		"token-bucket 3/1s burst 10": time.Second,
	} {
		for _, other := range []string{"", "- {name: other, limit: fixed-window 1000/h}\n"} {
			clock := &ratelimittest.Clock{}
			set, err := policy.Parse([]byte("rules:\n- {name: api, grace: 50%, limit: " + limit + "}\n" + other))
			require.NoError(t, err)
			p, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})
			require.NoError(t, err)
			res, err := p.Reserve(t.Context(), attrs{}, 12, time.Hour)
			require.NoError(t, err)
			require.True(t, res.Allowed)
			assert.Equal(t, [3]any{0, 2, want}, [3]any{res.Remaining, res.Debt, res.NextAfter}, limit)
			denied, err := p.Reserve(t.Context(), attrs{}, 5, 0)
			require.NoError(t, err)
			assert.False(t, denied.Allowed)
			assert.Equal(t, want, denied.NextAfter, limit)
			if want == 0 {
				continue
			}
			clock.Advance(want - 1)
			d, err := p.Peek(t.Context(), attrs{}, 1)
			require.NoError(t, err)
			assert.Equal(t, [2]any{0, time.Duration(1)}, [2]any{d.Remaining, d.NextAfter}, limit)
			clock.Advance(1)
			d, err = p.Peek(t.Context(), attrs{}, 1)
			require.NoError(t, err)
			assert.Positive(t, d.Remaining, limit)
		}
	}
}

// A denial by a rule with a grace contains that rule's debt, even if another rule has less left.
func TestADenialHasTheDebtOfItsGrace(t *testing.T) {
	p, _ := made(t, "rules:\n- {name: quota, grace: 50%, limit: fixed-window 100/h}\n- {name: api, limit: token-bucket 1/m burst 149}\n")
	d, err := p.Take(t.Context(), attrs{}, 148)
	require.NoError(t, err)
	require.True(t, d.Allowed)
	d, err = p.Take(t.Context(), attrs{}, 5)
	require.NoError(t, err)
	assert.Equal(t, "quota", d.Limit.Name)
	assert.Equal(t, [2]int{0, 48}, [2]int{d.Remaining, d.Debt})
}

// A rule charged always denies a cost of 0 until its grace has a unit again. The decision and its explanation agree.
func TestACostOf0PassesWhenTheGraceHasAUnit(t *testing.T) {
	p, clock := made(t, "rules:\n- {name: tokens, grace: 50%, charge: always, limit: token-bucket 1/s burst 10}\n")
	_, err := p.Take(t.Context(), attrs{}, 15)
	require.NoError(t, err)
	d, err := p.Take(t.Context(), attrs{}, 0)
	require.NoError(t, err)
	assert.Equal(t, time.Second, d.RetryAfter)
	ex, err := p.Explain(attrs{}, 0)
	require.NoError(t, err)
	assert.Equal(t, time.Second, ex.Rules[0].Decision.RetryAfter)
	clock.Advance(time.Second)
	assert.True(t, p.Allow(attrs{}, 0))
}
