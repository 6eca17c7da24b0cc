package ratelimit_test

import (
	"context"
	"fmt"
	"math"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

// choice is a request with the layers that apply to it.
type choice []int

func thePicked(c choice, which []int) []int { return append(which, c...) }

// many returns a stack of n layers, each with a limiter of its own, of which layer i
// has a capacity of i + 1, and a count of the key functions that ran.
func many(t testing.TB, n int) (stack *ratelimit.Layered[choice], ran *int) {
	t.Helper()
	clock, ran := new(testClock), new(int)
	layers := make([]ratelimit.Layer[choice], n)
	for i := range layers {
		l := onClock(t, clock, ratelimit.FixedWindow(ratelimit.PerMinute(i+1)).Named(fmt.Sprint("layer", i)))
		layers[i] = ratelimit.By(l, func(choice) (string, error) { *ran++; return "ann", nil })
	}
	stack, err := ratelimit.AllOf(thePicked, layers...)
	require.NoError(t, err)
	return stack, ran
}

func TestOnlyThePickedLayersCount(t *testing.T) {
	stack, ran := many(t, 1000)
	assert.Len(t, stack.Limits(), 1000)
	d, err := stack.Take(t.Context(), choice{9, 7, 999}, 6)
	require.NoError(t, err)
	assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: stack.Limits()[7], Remaining: 2, ResetAfter: time.Minute}, d)
	assert.Equal(t, 3, *ran)
	d, err = stack.Take(t.Context(), choice{9, 999}, 5)
	require.NoError(t, err)
	assert.Equal(t, "layer9", d.Limit.Name)
	assert.False(t, d.Allowed)
	assert.True(t, stack.Allow(choice{999}, 994), "a denial charges none of the picked")
	assert.False(t, stack.Allow(choice{999}, 1))
	assert.True(t, stack.Allow(choice{0}, 1))
}

func TestALayerPickedTwiceCountsOnce(t *testing.T) {
	stack, ran := many(t, 4)
	d, err := stack.Take(t.Context(), choice{3, 2, 3, 2}, 1)
	require.NoError(t, err)
	assert.Equal(t, 2, d.Remaining)
	assert.Equal(t, 2, *ran)
}

func TestARequestThatPicksNothingIsAllowed(t *testing.T) {
	stack, _ := many(t, 4)
	for range 2 {
		d, err := stack.Take(t.Context(), nil, 9)
		require.NoError(t, err)
		assert.Equal(t, ratelimit.Decision{Allowed: true, Limit: ratelimit.Unlimited(), Remaining: math.MaxInt}, d)
	}
	require.NoError(t, stack.Wait(t.Context(), nil, 1))
}

func TestAnIndexThatIsOutOfRangeIsAnError(t *testing.T) {
	stack, _ := many(t, 4)
	for _, i := range []int{4, -1, math.MaxInt, math.MinInt} {
		d, err := stack.Take(t.Context(), choice{3, i}, 1)
		require.EqualError(t, err, fmt.Sprintf("ratelimit: AllOf was told to pick layer %d of 4", i))
		assert.Equal(t, ratelimit.Decision{}, d)
		_, err = stack.Peek(choice{i}, 1)
		require.Error(t, err)
		_, err = stack.Reserve(t.Context(), choice{i}, 1, 0)
		require.Error(t, err)
		require.Error(t, stack.Wait(t.Context(), choice{i}, 1))
	}
	assert.True(t, stack.Allow(choice{3}, 4), "nothing was charged")
	_, err := stack.Take(t.Context(), choice{3}, -1)
	require.ErrorIs(t, err, ratelimit.ErrNegativeCost)
}

func TestThePicksOrderIsTheLayersOrder(t *testing.T) {
	clock := new(testClock)
	limit := ratelimit.FixedWindow(ratelimit.PerMinute(1))
	var layers []ratelimit.Layer[choice]
	for _, name := range []string{"a", "b", "c"} {
		layers = append(layers, ratelimit.By(onClock(t, clock, limit.Named(name)), func(choice) (string, error) { return "ann", nil }))
	}
	stack, err := ratelimit.AllOf(thePicked, layers...)
	require.NoError(t, err)
	for range 20 {
		for _, order := range []choice{{2, 0}, {1, 2}, {0, 1}} {
			d, err := stack.Peek(order, 1)
			require.NoError(t, err)
			assert.Equal(t, stack.Limits()[order[0]], d.Limit)
		}
	}
}

func TestAllOfRefusesWhatCannotBeAStack(t *testing.T) {
	_, err := ratelimit.AllOf[choice](nil)
	require.EqualError(t, err, "ratelimit: AllOf needs a function that picks layers")
	_, err = ratelimit.AllOf(thePicked)
	require.EqualError(t, err, "ratelimit: AllOf needs at least one layer")
	_, err = ratelimit.AllOf(thePicked, nil)
	require.EqualError(t, err, "ratelimit: layer 0 is nil")
}

func TestPickedLayersDoNotAllocate(t *testing.T) {
	stack, _ := many(t, 1000)
	few, all := choice{998, 997, 999}, make(choice, 1000)
	for i := range all {
		all[i] = i
	}
	slices.Reverse(all)
	decide := func() {
		stack.Allow(few, 1)
		stack.Allow(all, 1)
		_, _ = stack.Take(context.Background(), few, 1)
		_, _ = stack.Peek(few, 1)
	}
	decide()
	if raceEnabled {
		return // sync.Pool drops things at random under the race detector
	}
	assert.Zero(t, testing.AllocsPerRun(50, decide))
}
