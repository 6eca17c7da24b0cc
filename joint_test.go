package ratelimit_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/chain"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func perUser(r string) (string, error) { return r, nil }

// inFront wraps a limiter, and has only a Reserver's methods.
type inFront[K comparable] struct{ ratelimit.Reserver[K] }

// uncomparable is a limiter that cannot be a map's key.
type uncomparable struct {
	ratelimit.Reserver[string]
	_ []string
}

func TestALayerAloneMayHaveAnyLimiter(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(5)).Named("five")
	keyed := func() *ratelimit.Keyed[string] { return ratelimit.Must(ratelimit.New[string](limit, nil)) }
	numbers := ratelimit.Must(ratelimit.New[int](limit, nil))
	leased, err := lease.New[string](keyed(), &lease.Options[string]{MaxBatch: 1})
	require.NoError(t, err)
	over, err := failover.New[string](keyed(), keyed(), &failover.Options{Timeout: time.Minute})
	require.NoError(t, err)
	inTurn, err := chain.New[string](keyed(), keyed())
	require.NoError(t, err)
	layers := map[string]ratelimit.Layer[string]{
		"memory":           ratelimit.By(keyed(), perUser),
		"lease":            ratelimit.By(leased, perUser),
		"failover":         ratelimit.By(over, perUser),
		"chain":            ratelimit.By(inTurn, perUser),
		"a wrapper":        ratelimit.By(inFront[string]{keyed()}, perUser),
		"keys of a number": ratelimit.By(inFront[int]{numbers}, func(r string) (int, error) { return int(r[0]), nil }),
		"not comparable":   ratelimit.By(uncomparable{Reserver: keyed()}, perUser),
	}
	for name, y := range layers {
		t.Run(name, func(t *testing.T) {
			var events []ratelimit.Event[string]
			y.Observe = func(e ratelimit.Event[string]) { events = append(events, e) }
			y.Cost = func(string) int { return 2 }
			y.Actual = func(string) int { return 1 }
			l, err := ratelimit.All(y)
			require.NoError(t, err)
			d, err := l.Take(t.Context(), "ann", 7)
			require.NoError(t, err)
			assert.True(t, d.Allowed)
			res, err := l.Reserve(t.Context(), "ann", 7, 0)
			require.NoError(t, err)
			require.True(t, res.Allowed)
			require.NoError(t, res.Settle(7))
			assert.True(t, l.Allow("ann", 1))
			d, err = l.Take(t.Context(), "ann", 1)
			require.NoError(t, err)
			assert.False(t, d.Allowed, "5 − 2 − 1 − 2 = 0")
			assert.NotZero(t, d.RetryAfter)
			assert.Equal(t, "five", d.Limit.Name)
			require.Len(t, events, 4)
			for i, e := range events {
				assert.Equal(t, "ann", e.Key)
				assert.Equal(t, 2, e.Cost)
				assert.Equal(t, i < 3, e.Decision.Allowed && e.Spent)
				assert.Equal(t, "five", e.Decision.Limit.Name)
			}
			_, err = l.Take(t.Context(), "ann", -1)
			assert.ErrorIs(t, err, ratelimit.ErrNegativeCost)
			ctx, end := context.WithTimeout(t.Context(), time.Minute)
			defer end()
			assert.ErrorIs(t, l.Wait(ctx, "ann", 1), context.DeadlineExceeded)
			require.NoError(t, l.Wait(t.Context(), "bob", 1))
			if _, ok := l.Peek(t.Context(), "bob", 1); ok == nil {
				d, err = l.Peek(t.Context(), "eve", 1)
				require.NoError(t, err)
				assert.True(t, d.Allowed)
			} else {
				assert.ErrorIs(t, ok, errors.ErrUnsupported)
			}
		})
	}
}

func TestALayerAloneServesWaitersAsItsLimiterDoes(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l, err := ratelimit.All(ratelimit.By(inFront[string]{ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1), 1), nil))}, perUser))
		require.NoError(t, err)
		begin := time.Now()
		done := make(chan int, 5)
		for i := range 5 {
			go func() {
				assert.NoError(t, l.Wait(t.Context(), "ann", 1))
				done <- i
			}()
			synctest.Wait()
		}
		for i := range 5 {
			assert.Equal(t, i, <-done, "in the order of their calls")
		}
		assert.Equal(t, 4*time.Second, time.Since(begin))
	})
}

func TestALayerAloneThatCannotReserveReturnsThat(t *testing.T) {
	l, err := ratelimit.All(ratelimit.By[string](struct{ ratelimit.Limiter[string] }{ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))}, perUser))
	require.NoError(t, err)
	assert.True(t, l.Allow("ann", 1))
	res, err := l.Reserve(t.Context(), "ann", 1, 0)
	assert.ErrorIs(t, err, errors.ErrUnsupported)
	assert.False(t, res.Allowed)
	assert.ErrorIs(t, l.Wait(t.Context(), "ann", 1), errors.ErrUnsupported)
	assert.ErrorIs(t, l.Adjust(t.Context(), "ann", 1), errors.ErrUnsupported)
}

// joins is a limiter with fixed results of Join.
type joins struct {
	*ratelimit.Keyed[string]
	joint ratelimit.Joint
	err   error
}

func (j *joins) Join([]ratelimit.Joining) (ratelimit.Joint, error) { return j.joint, j.err }

func TestMixesAreErrorsThatNameChain(t *testing.T) {
	keyed := ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))
	apart := &joins{Keyed: keyed, err: fmt.Errorf("it is on another server: %w", errors.ErrUnsupported)}
	layers := map[string][]ratelimit.Layer[string]{
		"memory beside a store":         {ratelimit.By(keyed, perUser), ratelimit.By[string](apart, perUser)},
		"a store beside memory":         {ratelimit.By[string](apart, perUser), ratelimit.By(keyed, perUser)},
		"two that cannot join":          {ratelimit.By[string](inFront[string]{keyed}, perUser), ratelimit.By[string](inFront[string]{keyed}, perUser)},
		"one that cannot join":          {ratelimit.By(keyed, perUser), ratelimit.By[string](inFront[string]{keyed}, perUser)},
		"a Join that fails":             {ratelimit.By[string](apart, perUser), ratelimit.By[string](apart, perUser)},
		"a Join that returns nothing":   {ratelimit.By[string](&joins{Keyed: keyed}, perUser), ratelimit.By[string](&joins{Keyed: keyed}, perUser)},
		"keys that are not texts":       {ratelimit.By[string](inFront[int]{ratelimit.Must(ratelimit.New[int](ratelimit.Unlimited(), nil))}, func(string) (int, error) { return 0, nil }), ratelimit.By[string](apart, perUser)},
		"a shadow of another store":     {ratelimit.By(keyed, perUser), shadow(ratelimit.By[string](apart, perUser))},
		"one that cannot be compared":   {ratelimit.By[string](uncomparable{Reserver: keyed}, perUser), ratelimit.By[string](uncomparable{Reserver: keyed}, perUser)},
		"a store beside one that can't": {ratelimit.By[string](apart, perUser), ratelimit.By[string](inFront[string]{keyed}, perUser)},
	}
	for name, all := range layers {
		_, err := ratelimit.All(all...)
		assert.ErrorContains(t, err, "package chain", name)
		_, err = ratelimit.AllOf(func(_ string, which []int) []int { return append(which, 0) }, all...)
		assert.ErrorContains(t, err, "package chain", name)
	}
	l, err := ratelimit.All(ratelimit.By[string](apart, perUser))
	require.NoError(t, err, "one layer alone is always allowed")
	assert.True(t, l.Allow("ann", 1))
	fault := errors.New("its options are wrong")
	_, err = ratelimit.All(ratelimit.By[string](&joins{Keyed: keyed, err: fault}, perUser))
	assert.ErrorIs(t, err, fault, "a fault of the limiter itself is reported")
}

func shadow[R any](y ratelimit.Layer[R]) ratelimit.Layer[R] {
	y.Shadow = true
	return y
}

func TestALimitOfTheRequestNeedsAStoreThatJoins(t *testing.T) {
	y := ratelimit.By[string](inFront[string]{ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil))}, perUser)
	y.Limit = func(string) ratelimit.Limit { return ratelimit.Blocked() }
	_, err := ratelimit.All(y)
	assert.ErrorContains(t, err, "layer 0 has a Limit")
}

func TestGlobalRefusesALimiterWithKeys(t *testing.T) {
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2))
	one := ratelimit.Must(ratelimit.New[struct{}](limit, nil))
	for name, y := range map[string]ratelimit.Layer[string]{
		"memory, by text":    ratelimit.Global[string](ratelimit.Must(ratelimit.New[string](limit, nil))),
		"memory, by number":  ratelimit.Global[string](ratelimit.Must(ratelimit.New[int](limit, nil))),
		"a wrapper, by text": ratelimit.Global[string](inFront[string]{ratelimit.Must(ratelimit.New[string](limit, nil))}),
	} {
		_, err := ratelimit.All(y)
		assert.ErrorContains(t, err, "Global was given a", name)
		_, err = ratelimit.All(ratelimit.Global[string](one), y)
		assert.ErrorContains(t, err, "Global was given a", name)
	}
	for name, y := range map[string]ratelimit.Layer[string]{
		"memory":    ratelimit.Global[string](one),
		"a wrapper": ratelimit.Global[string](inFront[struct{}]{ratelimit.Must(ratelimit.New[struct{}](limit, nil))}),
	} {
		l, err := ratelimit.All(y)
		require.NoError(t, err, name)
		assert.True(t, l.Allow("ann", 1) && l.Allow("bob", 1) && !l.Allow("eve", 1), name)
	}
	_, err := ratelimit.All(ratelimit.Global[string, struct{}](nil))
	assert.ErrorContains(t, err, "Global: l is nil")
}

// completion is a call to a language model. Its handler fills in the figures at the end.
type completion struct {
	user            string
	estimate        int
	tokens, dollars int
	free            bool
}

func TestEachLayerSettlesAtItsOwnCost(t *testing.T) {
	clock := new(ratelimittest.Clock)
	var limiters []*ratelimit.Keyed[string]
	layer := func(name string, n int) ratelimit.Layer[*completion] {
		l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(n)).Named(name), &ratelimit.Options[string]{Clock: clock}))
		limiters = append(limiters, l)
		return ratelimit.By(l, func(c *completion) (string, error) {
			if c.free && name == "dollars" {
				return "", ratelimit.SkipLayer
			}
			return c.user, nil
		})
	}
	tokens, dollars, requests, trial, plain := layer("tokens", 10_000), layer("dollars", 100), layer("requests", 10), shadow(layer("trial", 5_000)), layer("plain", 1000)
	tokens.Cost, tokens.Actual = func(c *completion) int { return c.estimate }, func(c *completion) int { return c.tokens }
	dollars.Actual = func(c *completion) int { return c.dollars }
	requests.Cost = func(*completion) int { return 1 }
	trial.Actual = tokens.Actual
	l, err := ratelimit.All(tokens, dollars, requests, trial, plain)
	require.NoError(t, err)
	spent := func(user string) (all []int) {
		for _, x := range limiters {
			d, err := x.Peek(t.Context(), user, 0)
			require.NoError(t, err)
			all = append(all, x.Describe().Limits[0].Capacity()-d.Remaining+d.Debt)
		}
		return all
	}

	for _, row := range []struct {
		name            string
		call            completion
		cost            int
		held            []int // spent when the call begins
		tokens, dollars int   // the real costs
		settle          int   // the cost of the other layers
		spent           []int
	}{
		{"less", completion{estimate: 4000}, 20, []int{4000, 20, 1, 20, 20}, 1234, 7, 15, []int{1234, 7, 1, 1234, 15}},
		{"more than was reserved is a debt", completion{estimate: 4000}, 20, []int{4000, 20, 1, 20, 20}, 11_000, 130, 3, []int{11_000, 130, 1, 11_000, 3}},
		{"nothing was done", completion{estimate: 4000}, 20, []int{4000, 20, 1, 20, 20}, 5, 5, 0, []int{0, 0, 0, 0, 0}},
		{"a layer that does not apply", completion{estimate: 4000, free: true}, 20, []int{4000, 0, 1, 20, 20}, 9, 9, 4, []int{9, 0, 1, 9, 4}},
		{"of 0, as Adjust charges", completion{}, 0, []int{0, 0, 0, 0, 0}, 70, 3, 2, []int{70, 3, 0, 0, 2}},
		{"a real cost below 0: the estimates stay charged", completion{estimate: 4000}, 20, []int{4000, 20, 1, 20, 20}, -1, 0, 3, []int{4000, 20, 1, 20, 20}},
	} {
		c := &row.call
		c.user = row.name
		res, err := l.Reserve(t.Context(), c, row.cost, 0)
		require.NoError(t, err)
		require.True(t, res.Allowed)
		assert.Equal(t, row.held, spent(c.user), row.name)
		c.tokens, c.dollars = row.tokens, row.dollars
		err = res.Settle(row.settle)
		assert.Equal(t, row.spent, spent(c.user), row.name)
		if row.tokens >= 0 {
			assert.NoError(t, err, row.name)
			continue
		}
		assert.ErrorIs(t, err, ratelimit.ErrNegativeCost)
		assert.ErrorContains(t, err, "layer 0")
		assert.ErrorContains(t, err, "Actual")
	}
}

// A Wait has no real costs: its charge stays.
func TestAWaitDoesNotReadActual(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Must(ratelimit.New[string](ratelimit.LeakyBucket(ratelimit.PerSecond(1), 5), nil))
		y := ratelimit.By(l, perUser)
		y.Actual = func(string) int { t.Error("Actual is called"); return 0 }
		stack, err := ratelimit.All(y)
		require.NoError(t, err)
		require.NoError(t, stack.Wait(t.Context(), "ann", 1))
		require.NoError(t, stack.Wait(t.Context(), "ann", 1))
		ctx, end := context.WithTimeout(t.Context(), time.Second/2)
		defer end()
		require.Error(t, stack.Wait(ctx, "ann", 1))
	})
}

// Two layers charge one key. One has an Actual, and the other settles at the argument.
func TestLayersThatMeetAtOneKeySettleTogether(t *testing.T) {
	l := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(100)), nil))
	own := ratelimit.By(l, perUser)
	own.Actual = func(string) int { return 30 }
	stack, err := ratelimit.All(ratelimit.By(l, perUser), own)
	require.NoError(t, err)
	res, err := stack.Reserve(t.Context(), "ann", 10, 0)
	require.NoError(t, err)
	require.NoError(t, res.Settle(4))
	d, err := l.Peek(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, 100-4-30, d.Remaining)
}

func TestPeekEachReturnsTheDecisionOfEachLayer(t *testing.T) {
	month := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.Per(1000, 30*24*time.Hour)).Named("month"), nil))
	minute := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerMinute(10)).Named("minute"), nil))
	tried := ratelimit.Must(ratelimit.New[string](ratelimit.FixedWindow(ratelimit.PerHour(3)).Named("try"), nil))
	failed := errors.New("no such user")
	byMinute := ratelimit.By(minute, func(r string) (string, error) {
		switch r {
		case "batch":
			return "", ratelimit.SkipLayer
		case "nobody":
			return "", failed
		}
		return r, nil
	})
	observed := 0
	byMinute.Observe = func(ratelimit.Event[string]) { observed++ }
	requests := ratelimit.By(month, perUser)
	requests.Cost = func(string) int { return 1 }
	l, err := ratelimit.All(ratelimit.By(month, perUser), byMinute, shadow(ratelimit.By(tried, perUser)), requests)
	require.NoError(t, err)
	for range 2 {
		require.True(t, l.Allow("ann", 4))
	}
	observed = 0

	for _, row := range []struct {
		request    string
		cost       int
		remainders []int // a key's Remaining counts all layers on that key
		verdicts   []bool
		err        error
	}{
		{"ann", 3, []int{990, 2, 3, 990}, []bool{true, false, true, true}, nil},
		// the figures are returned all the same
		{"ann", 11, []int{990, 2, 3, 990}, []bool{true, false, false, true}, ratelimit.ErrExceedsLimit},
		{"batch", 3, []int{1000, 0, 3, 1000}, []bool{true, false, true, true}, nil}, // the layer does not apply
		{"nobody", 3, nil, nil, failed},
		{"ann", -1, nil, nil, ratelimit.ErrNegativeCost},
	} {
		each, err := l.PeekEach(t.Context(), row.request, row.cost)
		assert.ErrorIs(t, err, row.err)
		assert.Equal(t, row.remainders, remainders(each), "%s %d", row.request, row.cost)
		assert.Equal(t, row.verdicts, verdicts(each), "%s %d", row.request, row.cost)
		if row.err == ratelimit.ErrExceedsLimit {
			assert.ErrorContains(t, err, "layer 1")
		} else if row.request == "batch" {
			assert.Equal(t, ratelimit.Decision{}, each[1])
		}
	}
	each, err := l.PeekEach(t.Context(), "ann", 3)
	require.NoError(t, err)
	assert.Equal(t, "month minute try month", fmt.Sprint(each[0].Limit.Name, " ", each[1].Limit.Name, " ", each[2].Limit.Name, " ", each[3].Limit.Name))
	assert.Positive(t, each[1].RetryAfter)
	assert.Zero(t, each[0].RetryAfter)

	before, err := l.Peek(t.Context(), "ann", 1)
	require.NoError(t, err)
	_, _ = l.PeekEach(t.Context(), "ann", 1)
	after, err := l.Peek(t.Context(), "ann", 1)
	require.NoError(t, err)
	assert.Equal(t, before.Remaining, after.Remaining)
	assert.Zero(t, observed, "a Peek is no decision")
}

func remainders(all []ratelimit.Decision) (n []int) {
	for _, d := range all {
		n = append(n, d.Remaining)
	}
	return n
}

func verdicts(all []ratelimit.Decision) (n []bool) {
	for _, d := range all {
		n = append(n, d.Allowed)
	}
	return n
}
