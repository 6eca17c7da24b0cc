package policy_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/policy"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func TestARefundAboveTheSpendingIsAnErrorThatNamesOverrides(t *testing.T) {
	for _, notify := range []string{"", ", notify: 80%"} {
		p := ratelimit.Must(policy.New(parsed(t, `rules: [{name: quota, key: user, limit: fixed-window 100/h`+notify+`}, {name: all, limit: fixed-window 1000/h}]`), &policy.Options{
			Engine: policy.Memory(&policy.MemoryOptions{Clock: new(ratelimittest.Clock)}), OnThreshold: func(policy.Threshold) {},
		}))
		request, ann := policy.Attributes{"user": "ann"}, policy.Subject{Rule: "quota", Key: []string{"ann"}}
		err := p.Adjust(t.Context(), ann, -50)
		require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
		assert.ErrorContains(t, err, `rule "quota"`)
		assert.ErrorContains(t, err, "delta is -50, and the key had spent 0 units")
		assert.ErrorContains(t, err, "above its limit of 100; for a higher limit until some time, write an entry in overrides with until")
		assert.NotContains(t, err.Error(), "ann")

		require.True(t, p.Allow(request, 30))
		require.NoError(t, p.Adjust(t.Context(), ann, -30))
		require.True(t, p.Allow(request, 30))
		require.ErrorIs(t, p.Adjust(t.Context(), ann, -31), ratelimit.ErrExceedsLimit)
		d, err := p.Peek(t.Context(), ann, 1)
		require.NoError(t, err)
		assert.Equal(t, 100, d.Remaining, "what was spent is given back")
		require.NoError(t, p.Adjust(t.Context(), request, -500), "of all rules of a request, each gives back what it has")
		require.NoError(t, p.Adjust(t.Context(), ann, 150))
		require.NoError(t, p.Adjust(t.Context(), ann, -150), "a debt, too")
	}
}
