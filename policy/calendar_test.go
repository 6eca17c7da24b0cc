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

// A rule's quota ends with the month in its time zone. Plans, overrides and an additional rate work as with other limits.
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
	for _, c := range []struct {
		name, user, plan string
		after            time.Duration
		passed           int
		retry            time.Duration
	}{
		{name: "the rule's limit", user: "ann", passed: 5, retry: 51 * time.Second}, // midnight in Berlin
		{name: "a plan", user: "bob", plan: "pro", passed: 7, retry: 41 * time.Second},
		{name: "an override", user: "eve", plan: "pro", passed: 1, retry: time.Hour + 31*time.Second}, // midnight in UTC
		// with a change to summer time in between
		{name: "the next month", user: "ann", after: time.Minute, passed: 5, retry: 31*24*time.Hour - time.Hour - 39*time.Second},
	} {
		t.Run(c.name, func(t *testing.T) {
			clock.Advance(c.after)
			passed, last := 0, ratelimit.Decision{}
			for range 10 {
				last, err = p.Take(t.Context(), policy.Attributes{"user": c.user, "plan": c.plan}, 1)
				require.NoError(t, err)
				if last.Allowed {
					passed++
				}
				clock.Advance(time.Second) // the rate regains
			}
			assert.Equal(t, c.passed, passed)
			assert.Equal(t, "quota", last.Limit.Name)
			assert.Equal(t, c.retry, last.RetryAfter)
		})
	}

	_, err = policy.Parse([]byte("rules: [{name: a, key: user, limit: calendar 5/month Local}]"))
	require.ErrorContains(t, err, "Local")
	_, err = policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: wallless{}})})
	require.ErrorContains(t, err, "wall")
}

// wallless is a clock without the wall time.
type wallless struct{}

func (wallless) Now() time.Duration { return 0 }
