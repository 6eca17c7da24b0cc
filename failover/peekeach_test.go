package failover_test

import (
	"context"
	"errors"
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
)

// outStack is a stack whose store fails.
type outStack struct{ *ratelimit.Layered[string] }

func (outStack) Take(context.Context, string, int) (ratelimit.Decision, error) {
	return ratelimit.Decision{}, ratelimit.ErrUnavailable
}

func (outStack) PeekEach(context.Context, string, int) ([]ratelimit.Decision, error) {
	return nil, ratelimit.ErrUnavailable
}

func TestPeekEachLooksWhereTheDecisionIsMade(t *testing.T) {
	stack := func(month, minute int) *ratelimit.Layered[string] {
		layer := func(n int, name string) ratelimit.Layer[string] {
			l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(n)).Named(name), nil))
			return ratelimit.By(l, func(key string) (string, error) {
				if key == "none" && name == "minute" {
					return "", ratelimit.SkipLayer
				}
				return key, nil
			})
		}
		return ratelimit.Must(ratelimit.All(layer(month, "month"), layer(minute, "minute")))
	}
	left := func(all []ratelimit.Decision) (n []int) {
		for _, d := range all {
			n = append(n, d.Remaining)
		}
		return n
	}
	shared, local := stack(1000, 100), stack(100, 10)
	l, err := failover.New[string](shared, local, nil)
	require.NoError(t, err)
	require.True(t, l.Allow("ann", 5))
	each, err := l.PeekEach(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, []int{995, 95}, left(each))
	assert.False(t, each[0].Degraded)

	l.Force(failover.StateOpen)
	each, err = l.PeekEach(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, []int{100, 10}, left(each))
	assert.True(t, each[0].Degraded && each[1].Degraded)
	each, err = l.PeekEach(t.Context(), "none", 1)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{}, each[1], "a layer that does not apply")
	each, err = l.PeekEach(t.Context(), "ann", 50)
	require.NoError(t, err, "the primary may allow it")
	assert.Equal(t, []bool{true, false}, []bool{each[0].Allowed, each[1].Allowed})
	assert.Positive(t, each[1].RetryAfter)

	down, err := failover.New[string](outStack{shared}, local, nil)
	require.NoError(t, err)
	each, err = down.PeekEach(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, []int{100, 10}, left(each))

	plain, err := failover.New[string](failover.AllowAll[string](), failover.DenyAll[string](), nil)
	require.NoError(t, err)
	_, err = plain.PeekEach(t.Context(), "ann", 1)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
}
