package ratelimit_test

import (
	"context"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
)

// remote is an engine of another package, as little of it as a nil pointer needs.
type remote struct{ ratelimit.Reserver[string] }

// Constructors that return an error refuse a nil argument, and one whose first call would panic.
func TestConstructorsRefuseWhatIsNil(t *testing.T) {
	var noKeyed *ratelimit.Keyed[string]
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(9)), ratelimit.Options[string]{})
	layer := ratelimit.By(l, byUser)
	pick := func(_ call, which []int) []int { return which }
	all := func(layers ...ratelimit.Layer[call]) error {
		_, err := ratelimit.All(layers...)
		return err
	}
	_, errAllOf := ratelimit.AllOf(nil, layer)
	_, errAllOfLayer := ratelimit.AllOf(pick, nil)
	for _, test := range []struct {
		err  error
		want string
	}{
		{all(layer, nil), "ratelimit: layer 1 is nil"},
		{all(ratelimit.By(noKeyed, byUser)), "ratelimit: layer 0: By was given no limiter"},
		{all(ratelimit.By(new(ratelimit.Keyed[string]), byUser)), "ratelimit: layer 0: By was given a zero Keyed; use New"},
		{all(ratelimit.By[call](l, nil)), "ratelimit: layer 0: By was given no key function"},
		{all(ratelimit.WithCost(nil, func(call) int { return 1 })), "ratelimit: layer 0: WithCost was given no layer"},
		{all(ratelimit.WithCost(layer, nil)), "ratelimit: layer 0: WithCost was given no cost function"},
		{all(ratelimit.WithLimit(nil, func(call) ratelimit.Limit { return ratelimit.Limit{} })), "ratelimit: layer 0: WithLimit was given no layer"},
		{all(ratelimit.WithLimit(layer, nil)), "ratelimit: layer 0: WithLimit was given no limit function"},
		{all(ratelimit.Shadow[call](nil)), "ratelimit: layer 0: Shadow was given no layer"},
		{all(ratelimit.Observe(nil, func(ratelimit.Event[call]) {})), "ratelimit: layer 0: Observe was given no layer"},
		{all(ratelimit.Observe(layer, nil)), "ratelimit: layer 0: Observe was given no function to report to"},
		{errAllOf, "ratelimit: AllOf needs a function that picks layers"},
		{errAllOfLayer, "ratelimit: layer 0 is nil"},
	} {
		assert.EqualError(t, test.err, test.want)
	}
}

// What returns no error when it is made fails at each call, and does not panic.
func TestALimiterMadeOfNilFailsAtEachCall(t *testing.T) {
	var noKeyed *ratelimit.Keyed[string]
	var noRemote *remote
	l := newWith(t, ratelimit.FixedWindow(ratelimit.PerMinute(9)), ratelimit.Options[string]{})
	for _, test := range []struct {
		l    ratelimit.Reserver[call]
		want string
	}{
		{ratelimit.Map(nil, byUser), "ratelimit: Map was given no limiter"},
		{ratelimit.Map[call](ratelimit.Reserver[string](noKeyed), byUser), "ratelimit: Map was given no limiter"},
		{ratelimit.Map[call](ratelimit.Reserver[string](noRemote), byUser), "ratelimit: Map was given no limiter"},
		{ratelimit.Map[call, string](l, nil), "ratelimit: Map was given no key function"},
	} {
		for cost := range 2 {
			assert.False(t, test.l.Allow(call{}, cost))
			d, err := test.l.Take(t.Context(), call{}, cost)
			assert.Equal(t, ratelimit.Decision{}, d)
			assert.EqualError(t, err, test.want)
		}
		if teller, ok := test.l.(interface{ Limits() []ratelimit.Limit }); assert.True(t, ok) {
			assert.NotPanics(t, func() { teller.Limits() })
		}
		res, err := test.l.Reserve(t.Context(), call{}, 1, time.Second)
		assert.EqualError(t, err, test.want)
		assert.False(t, res.Allowed)
		assert.NoError(t, res.Cancel())
		assert.EqualError(t, ratelimit.Wait(t.Context(), test.l, call{}, 1), test.want)
		chain, err := chain.New(test.l)
		require.NoError(t, err)
		_, err = chain.Take(t.Context(), call{}, 1)
		assert.EqualError(t, err, test.want)
	}
}

func TestFunctionsThatAreGivenNoLimiterFail(t *testing.T) {
	var noKeyed *ratelimit.Keyed[string]
	var noRemote *remote
	for _, r := range []ratelimit.Reserver[string]{nil, noKeyed, noRemote} {
		assert.EqualError(t, ratelimit.Wait(t.Context(), r, "ann", 1), "ratelimit: Wait was given no limiter")
		_, err := ratelimit.Peek(t.Context(), ratelimit.Limiter[string](r), "ann", 1)
		assert.EqualError(t, err, "ratelimit: Peek was given no limiter")
		assert.EqualError(t, ratelimit.Adjust(t.Context(), ratelimit.Limiter[string](r), "ann", 1), "ratelimit: Adjust was given no limiter")
		assert.EqualError(t, ratelimit.Reset(t.Context(), ratelimit.Limiter[string](r), "ann"), "ratelimit: Reset was given no limiter")
	}
}

// A nil context is one that never ends, in every function that sleeps.
func TestANilContextNeverEnds(t *testing.T) {
	var none context.Context
	l := newWith(t, ratelimit.TokenBucket(ratelimit.PerSecond(1000), 1), ratelimit.Options[string]{})
	stack := stackOf(t, ratelimit.By(l, byUser))
	chain, err := chain.New[string](l)
	require.NoError(t, err)
	for range 2 {
		require.NoError(t, l.Wait(none, "ann", 1))
		require.NoError(t, ratelimit.Wait(none, ratelimit.Reserver[string](l), "ann", 1))
		require.NoError(t, stack.Wait(none, call{user: "ann"}, 1))
		require.NoError(t, chain.Wait(none, "ann", 1))
		require.NoError(t, ratelimit.Map[call](l, byUser).(interface {
			Wait(context.Context, call, int) error
		}).Wait(none, call{user: "ann"}, 1))
		r, err := l.Reserve(none, "ann", 1, time.Second)
		require.NoError(t, err)
		require.NoError(t, r.Wait(none))
	}
}
