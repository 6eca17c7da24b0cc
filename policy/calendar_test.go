package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// A rule's quota ends with the month of its time zone. Plans, overrides and an additional rate work as with other limits.
func TestRulesHaveCalendarQuotas(t *testing.T) {
	set := parsed(t, `
rules:
- name: quota
  key: user
  limit: calendar 5/month Europe/Berlin from 15
  plans: {pro: calendar 7/month Europe/Berlin from 15}
  overrides: [{key: eve, limit: calendar 1/day UTC}]
- {name: rate, key: user, limit: token-bucket 100/s burst 3}
`)
	clock := new(ratelimittest.Clock)
	berlin, err := time.LoadLocation("Europe/Berlin")
	require.NoError(t, err)
	clock.SetWall(time.Date(2026, 3, 14, 23, 59, 0, 0, berlin))
	p, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock})})
	require.NoError(t, err)
	admitted := func(user, plan string) (n int, last ratelimit.Decision) {
		for range 10 {
			d, err := p.Take(t.Context(), policy.Attributes{"user": user, "plan": plan}, 1)
			require.NoError(t, err)
			if last = d; d.Allowed {
				n++
			}
			clock.Advance(time.Second) // the rate regains
		}
		return n, last
	}
	n, d := admitted("ann", "")
	assert.Equal(t, 5, n)
	assert.Equal(t, "quota", d.Limit.Name)
	assert.Equal(t, 51*time.Second, d.RetryAfter, "midnight in Berlin")
	n, _ = admitted("bob", "pro")
	assert.Equal(t, 7, n)
	n, d = admitted("eve", "pro")
	assert.Equal(t, 1, n)
	assert.Equal(t, time.Hour+31*time.Second, d.RetryAfter, "midnight in UTC")

	clock.Advance(time.Minute)
	n, d = admitted("ann", "")
	assert.Equal(t, 5, n, "the next month")
	assert.Equal(t, time.Date(2026, 4, 15, 0, 0, 0, 0, berlin).Sub(clock.Wall().Add(-time.Second)), d.RetryAfter, "clocks are set in between")

	_, err = policy.Parse([]byte("rules: [{name: a, key: user, limit: calendar 5/month Local}]"))
	require.ErrorContains(t, err, "Local")
	_, err = policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: wallless{}})})
	require.ErrorContains(t, err, "wall")
}

// wallless is a clock without the wall time.
type wallless struct{}

func (wallless) Now() time.Duration { return 0 }
