package ratelimit_test

import (
	"testing"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
)

func TestObserveTellsWhatEachLayerSaidOfARequest(t *testing.T) {
	type request struct{ user, route string }
	clock := new(testClock)
	var events []ratelimit.Event[string]
	users := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("user"), ratelimit.Options[string]{
		Clock: clock, OnDecision: func(e ratelimit.Event[string]) { events = append(events, e) },
	})
	routes := newWith(t, ratelimit.FixedWindow(ratelimit.PerHour(9)).Named("route"), ratelimit.Options[string]{Clock: clock})
	told := map[string][]ratelimit.Event[request]{}
	watch := func(name string, l ratelimit.Layer[request]) ratelimit.Layer[request] {
		return ratelimit.Observe(l, func(e ratelimit.Event[request]) { told[name] = append(told[name], e) })
	}
	stack, err := ratelimit.All(
		watch("user", ratelimit.By(users, func(r request) (string, error) { return r.user, nil })),
		ratelimit.Shadow(watch("route", ratelimit.WithCost(
			ratelimit.By(routes, func(r request) (string, error) { return r.route, nil }), func(request) int { return 5 }))),
	)
	require.NoError(t, err)
	ann, bob := request{"ann", "/a"}, request{"bob", "/a"}
	require.True(t, stack.Allow(ann, 1))
	require.False(t, stack.Allow(ann, 1))
	require.True(t, stack.Allow(bob, 1))
	_, err = stack.Peek(bob, 1)
	require.NoError(t, err)

	require.Len(t, told["user"], 3)
	require.Len(t, told["route"], 3)
	for i, want := range []struct {
		r                        request
		user, route, spent, shad bool
	}{{ann, true, true, true, true}, {ann, false, false, false, false}, {bob, true, false, true, false}} {
		user, route := told["user"][i], told["route"][i]
		assert.Equal(t, want.r, user.Key)
		assert.Equal(t, want.r, route.Key)
		assert.Equal(t, want.user, user.Decision.Allowed)
		assert.Equal(t, want.route, route.Decision.Allowed)
		assert.Equal(t, want.spent, user.Spent)
		assert.Equal(t, want.shad, route.Spent)
		assert.Equal(t, 5, route.Cost)
		assert.Equal(t, "route", route.Decision.Limit.Name)
	}
	assert.Len(t, events, 3, "the limiter's own OnDecision is told as well")
}

func TestObserveNeedsALayerAndAFunction(t *testing.T) {
	_, err := ratelimit.All(ratelimit.Observe[string](nil, func(ratelimit.Event[string]) {}))
	require.ErrorContains(t, err, "Observe was given no layer")
	l, _ := newLimiter(t, ratelimit.FixedWindow(ratelimit.PerHour(1)))
	_, err = ratelimit.All(ratelimit.Observe(ratelimit.By(l, func(s string) (string, error) { return s, nil }), nil))
	require.ErrorContains(t, err, "Observe was given no function")
}
