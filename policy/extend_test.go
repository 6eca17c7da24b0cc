package policy_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/held"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

// A rule with Notify makes its own reservations.
func TestReservationsOfRulesAreExtended(t *testing.T) {
	for _, notify := range []string{"", ", notify: [80%]"} {
		clock := new(ratelimittest.Clock)
		set := ratelimit.Must(policy.Parse([]byte("rules:\n- {name: streams, key: user, limit: concurrent 2 hold 1m" + notify + "}")))
		p, err := policy.New(set, &policy.Options{Engine: policy.Memory(&policy.MemoryOptions{Clock: clock}), OnThreshold: func(policy.Threshold) {}})
		require.NoError(t, err)
		assert.True(t, p.Describe().Holds)
		ann := policy.Attributes{"user": "ann"}
		r, err := p.Reserve(t.Context(), ann, 2, 0)
		require.NoError(t, err)
		require.Equal(t, time.Minute, held.Hold(r))
		clock.Advance(40 * time.Second)
		require.NoError(t, r.Extend(t.Context()))
		clock.Advance(40 * time.Second)
		again, err := p.Reserve(t.Context(), ann, 1, 0)
		require.NoError(t, err)
		require.False(t, again.Allowed)
		require.NoError(t, r.Extend(t.Context()))
		require.NoError(t, r.Settle(2))
		require.ErrorIs(t, r.Extend(t.Context()), ratelimit.ErrLost)
		_, err = p.Take(t.Context(), ann, 1)
		require.ErrorContains(t, err, `the limit "streams" is concurrent 2 hold 1m, and this call has no end`)
	}
	for rules, holds := range map[string]bool{
		"- {name: a, key: user, limit: fixed-window 5/m}":                                                                    false,
		"- {name: a, key: user, limit: fixed-window 5/m, plans: {pro: concurrent 5 hold 1m}}":                                true,
		"- {name: a, key: user, limit: fixed-window 5/m, overrides: [{key: ann, limit: concurrent 5 hold 1m}]}":              true,
		"- {name: a, key: user, limit: fixed-window 5/m}\n- {name: b, key: user, limit: concurrent 5 hold 1m, shadow: true}": false,
		"- {name: a, key: user, limit: concurrent 5 hold 1m, disabled: true}":                                                false,
	} {
		p, err := policy.New(ratelimit.Must(policy.Parse([]byte("rules:\n"+rules))), nil)
		require.NoError(t, err)
		assert.Equal(t, holds, p.Describe().Holds, rules)
	}
}
