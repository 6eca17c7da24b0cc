package redislimit

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/redis/go-redis/v9"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/dev/model"
	"github.com/weir-go/ratelimit/internal/dev/testsize"
	"github.com/weir-go/ratelimit/ratelimittest"
)

func identity(key string) (string, error) { return key, nil }

// stackOfOne is a stack of one layer. It adds the methods of its limiter missing in a stack.
type stackOfOne struct {
	*ratelimit.Layered[string]
	l *Limiter
}

func (s stackOfOne) Adjust(ctx context.Context, key string, delta int) error {
	return s.l.Adjust(ctx, key, delta)
}
func (s stackOfOne) Reset(ctx context.Context, key string) error { return s.l.Reset(ctx, key) }
func (s stackOfOne) SetLimit(limit ratelimit.Limit) error        { return s.l.SetLimit(limit) }

// TestSuiteThroughAStack skips the cases where a stack differs: a stack
// books nothing ahead, and its Wait tries again if the queue is full.
func TestSuiteThroughAStack(t *testing.T) {
	testsize.Extra(t)
	testsize.Sequential(t)
	testsize.Client(t)
	verdicts(t)
	config := suiteOf(startServer(t).client(), new(ratelimittest.Clock))
	single := config.New
	config.Skip = []string{"Reserve", "Wait"}
	config.Want = []string{"Peek", "Adjust", "Reset", "SetLimit", "Calendar"}
	config.Histories = histories(6)
	config.New = func(limit ratelimit.Limit) (ratelimit.Limiter[string], error) {
		l, err := single(limit)
		if err != nil {
			return nil, err
		}
		stack, err := ratelimit.All(ratelimit.By(l.(*Limiter), identity))
		return stackOfOne{stack, l.(*Limiter)}, err
	}
	ratelimittest.Run(t, config)
}

// stackTwin makes the same calls on a stack in Redis and on a stack in memory.
type stackTwin struct {
	t      *testing.T
	rng    *rand.Rand
	clock  *ratelimittest.Clock
	limits []ratelimit.Limit
	memory *ratelimit.Layered[string]
	remote *ratelimit.Layered[string]
	open   [][2]*ratelimit.Reservation
	events [2]map[int]ratelimit.Event[string] // each layer's events, in memory and in Redis
	log    []string

	twice   bool         // two layers charge one key
	shadows map[int]bool // which layers are shadows
}

func newStackTwin(t *testing.T, client redis.UniversalClient, seed uint64) *stackTwin {
	w := &stackTwin{t: t, rng: rand.New(rand.NewPCG(testsize.Seed(seed), 2)), clock: new(ratelimittest.Clock), shadows: map[int]bool{}}
	pool := twinLimits()
	var memory []ratelimit.Layer[string]
	var remote []ratelimit.Layer[string]
	for i := range 1 + w.rng.IntN(8) {
		limit := pool[w.rng.IntN(len(pool))].Named(fmt.Sprintf("l%d", i))
		m, r := w.layer(client, limit, fmt.Sprintf("stack%d-%d", seed, i))
		memory, remote = append(memory, m), append(remote, r)
		if w.rng.IntN(6) == 0 { // the same limiter twice
			memory, remote = append(memory, m), append(remote, r)
			w.twice = true
		}
		for w.rng.IntN(3) == 0 { // the same key as a shadow, too, perhaps under another limit
			m, r := w.shadow(m, r, pool)
			w.shadows[len(memory)] = true
			memory, remote = append(memory, m), append(remote, r)
		}
	}
	w.events = [2]map[int]ratelimit.Event[string]{{}, {}}
	for i := range memory {
		memory[i] = model.ObservedBy(memory[i], func(e ratelimit.Event[string]) { w.events[0][i] = e })
		remote[i] = model.ObservedBy(remote[i], func(e ratelimit.Event[string]) { w.events[1][i] = e })
	}
	all := func(_ string, which []int) []int {
		for i := range memory {
			which = append(which, i, i/2) // a layer picked twice counts once
		}
		return which
	}
	var err error
	w.memory, err = ratelimit.AllOf(all, memory...)
	require.NoError(t, err)
	w.remote, err = ratelimit.AllOf(all, remote...)
	require.NoError(t, err)
	return w
}

func (w *stackTwin) shadow(m ratelimit.Layer[string], r ratelimit.Layer[string], pool []ratelimit.Limit) (ratelimit.Layer[string], ratelimit.Layer[string]) {
	if w.rng.IntN(2) == 0 {
		limit := pool[w.rng.IntN(len(pool))].Named("shadow")
		other := func(string) ratelimit.Limit { return limit }
		m, r = model.WithLimit(m, other), model.WithLimit(r, other)
	}
	return model.AsShadow(m), model.AsShadow(r)
}

// layer makes one layer of each kind. It has its own key or one for
// all. Sometimes it has its own cost, or is left out of requests.
func (w *stackTwin) layer(client redis.UniversalClient, limit ratelimit.Limit, name string) (ratelimit.Layer[string], ratelimit.Layer[string]) {
	w.limits = append(w.limits, limit)
	memory, err := ratelimit.New(limit, &ratelimit.Options[string]{Clock: w.clock})
	require.NoError(w.t, err)
	remote, err := New(client, limit, &Options{Name: name, Timeout: 10 * time.Second})
	require.NoError(w.t, err)
	key := identity
	switch w.rng.IntN(4) {
	case 0:
		key = func(string) (string, error) { return "all", nil }
	case 1:
		key = func(r string) (string, error) {
			if r == "b" {
				return "", ratelimit.SkipLayer
			}
			return r, nil
		}
	}
	m, r := ratelimit.By(memory, key), ratelimit.By(onClock(remote, w.clock), key)
	if w.rng.IntN(4) == 0 {
		n := w.rng.IntN(3)
		own := func(string) int { return n }
		return model.WithCost(m, own), model.WithCost(r, own)
	}
	return m, r
}

func (w *stackTwin) same(what string, memory, remote ratelimit.Decision, err1, err2 error) {
	w.t.Helper()
	w.log = append(w.log, fmt.Sprintf("%v %s: %+v, %v", w.clock.Now(), what, memory, err1))
	defer clear(w.events[0])
	defer clear(w.events[1])
	if err1 != nil && err2 != nil {
		return
	}
	memory.Limit, remote.Limit = ratelimit.Limit{}, ratelimit.Limit{} // if two bind equally, either may be reported
	if remote.NextAfter == 0 {                                        // unknown if a layer's own cost or another layer of its key leaves no room
		memory.NextAfter = 0
	}
	if memory != remote || (err1 == nil) != (err2 == nil) {
		w.t.Fatalf("%v: %s answers in Redis\n%+v, %v\nafter\n%s", w.limits, what, remote, err2, tail(w.log))
	}
	for i, e := range w.events[0] {
		if e.Err != nil {
			require.Error(w.t, w.events[1][i].Err)
			e.Err = w.events[1][i].Err // each engine has its own text
		}
		require.Equal(w.t, e, w.events[1][i], "%v: layer %d's event of %s, after\n%s", w.limits, i, what, tail(w.log))
	}
	require.Len(w.t, w.events[1], len(w.events[0]))
}

func (w *stackTwin) step() {
	ctx, key, cost := context.Background(), []string{"a", "b"}[w.rng.IntN(2)], w.rng.IntN(4)
	switch w.rng.IntN(5) {
	case 0, 1:
		d, err := w.memory.Take(ctx, key, cost)
		e, err2 := w.remote.Take(ctx, key, cost)
		w.same(fmt.Sprintf("Take(%s, %d)", key, cost), d, e, err, err2)
	case 2:
		ahead := time.Duration(w.rng.IntN(5000)) * time.Millisecond
		d, err := w.memory.Reserve(ctx, key, cost, ahead)
		e, err2 := w.remote.Reserve(ctx, key, cost, ahead)
		w.same(fmt.Sprintf("Reserve(%s, %d, %v)", key, cost, ahead), d.Decision, e.Decision, err, err2)
		if cost > 0 || !w.twice { // debts may differ if they are charged at once or layer by layer
			w.open = append(w.open, [2]*ratelimit.Reservation{d, e})
		}
	case 3:
		if k := len(w.open) - 1; k >= 0 {
			actual := w.rng.IntN(6)
			w.log = append(w.log, fmt.Sprintf("%v settle at %d", w.clock.Now(), actual))
			require.NoError(w.t, w.open[k][0].Settle(actual))
			require.NoError(w.t, w.open[k][1].Settle(actual))
			w.open = w.open[:k]
		}
	}
	d, err := w.memory.Peek(context.Background(), key, 1)
	e, err2 := w.remote.Peek(ctx, key, 1)
	w.same(fmt.Sprintf("Peek(%s, 1)", key), d, e, err, err2)
	if next := []time.Duration{0, 0, d.RetryAfter, d.ResetAfter / 5, 100 * time.Millisecond}[w.rng.IntN(5)]; next > 0 {
		w.clock.Advance(next / time.Microsecond * time.Microsecond)
		if next >= d.ResetAfter/5 {
			w.open = nil // only the limiter in memory can settle in the middle of a leaky queue
		}
	}
}

func TestStacksAnswerAsStacksInMemory(t *testing.T) {
	verdicts(t)
	client := startServer(t).client()
	for seed := range 60 {
		w := newStackTwin(t, client, uint64(seed))
		for range 60 {
			w.step()
		}
	}
}

// fixture is a server, a client and a clock for tests of single behaviours.
type fixture struct {
	t      *testing.T
	server *server
	client *redis.Client
	clock  *ratelimittest.Clock
}

func newFixture(t *testing.T) *fixture {
	s := startServer(t)
	return &fixture{t, s, s.client(), new(ratelimittest.Clock)}
}

func (f *fixture) limiter(limit ratelimit.Limit, name string) *Limiter {
	f.t.Helper()
	l, err := New(f.client, limit, &Options{Name: name, Timeout: 10 * time.Second})
	require.NoError(f.t, err)
	return onClock(l, f.clock)
}

func (f *fixture) left(l *Limiter, key string) int {
	f.t.Helper()
	d, err := l.Peek(f.t.Context(), key, 0)
	require.NoError(f.t, err)
	return d.Remaining
}

func TestShadowIsChargedAndNeverDenies(t *testing.T) {
	f := newFixture(t)
	var events []ratelimit.Event[string]
	wide := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(1), 10).Named("wide"), "wide")
	tight := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("tight"), "tight")
	tight.onDecision = func(e ratelimit.Event[string]) { events = append(events, e) }
	l, err := ratelimit.All(model.AsShadow(ratelimit.By(tight, identity)), ratelimit.By(wide, identity))
	require.NoError(t, err)
	require.Equal(t, wide.Describe().Limits, l.Describe().Limits, "a shadow's limit is none that the stack enforces")
	for i := range 3 {
		d, err := l.Take(t.Context(), "k", 1)
		require.NoError(t, err)
		assert.True(t, d.Allowed)
		assert.Equal(t, "wide", d.Limit.Name)
		assert.Equal(t, 9-i, d.Remaining)
	}
	require.Len(t, events, 3)
	assert.True(t, events[1].Spent)
	assert.False(t, events[2].Decision.Allowed)
	assert.False(t, events[2].Spent)
	assert.Equal(t, time.Hour, events[2].Decision.RetryAfter)
	assert.Equal(t, 0, f.left(tight, "k"))
}

func TestShadowIsNotChargedIfAnotherLayerDenies(t *testing.T) {
	f := newFixture(t)
	wide := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(1), 2), "wide")
	seen := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(50)), "seen")
	l, err := ratelimit.All(model.AsShadow(ratelimit.By(seen, identity)), ratelimit.By(wide, identity))
	require.NoError(t, err)
	for range 5 {
		l.Allow("k", 1)
	}
	assert.Equal(t, 48, f.left(seen, "k"))
}

func TestShadowOnTheKeyOfAnEnforcingLayerComesSecond(t *testing.T) {
	f := newFixture(t)
	one := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(1), 3), "one")
	l, err := ratelimit.All(model.AsShadow(ratelimit.By(one, identity)), ratelimit.By(one, identity))
	require.NoError(t, err)
	assert.True(t, l.Allow("k", 1))
	assert.Equal(t, 1, f.left(one, "k"))
	assert.True(t, l.Allow("k", 1), "the enforcing layer takes the last unit")
	assert.Equal(t, 0, f.left(one, "k"))
	assert.False(t, l.Allow("k", 1))
}

func TestShadowErrorsStayWithTheShadow(t *testing.T) {
	f := newFixture(t)
	var events []ratelimit.Event[string]
	broken := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("broken"), "broken")
	broken.onDecision = func(e ratelimit.Event[string]) { events = append(events, e) }
	wide := f.limiter(ratelimit.TokenBucket(ratelimit.PerSecond(1), 5), "wide")
	require.NoError(t, f.client.LPush(t.Context(), broken.space.key("k"), "x").Err())
	l, err := ratelimit.All(ratelimit.By(wide, identity), model.AsShadow(ratelimit.By(broken, identity)))
	require.NoError(t, err)
	r, err := l.Reserve(t.Context(), "k", 1, 0)
	require.NoError(t, err)
	assert.True(t, r.Allowed)
	require.Len(t, events, 1)
	assert.ErrorIs(t, events[0].Err, errForeignState)
	require.NoError(t, r.Cancel())
	assert.Equal(t, 5, f.left(wide, "k"))
	// A cost above a shadow's capacity concerns only the shadow.
	require.NoError(t, f.client.Del(t.Context(), broken.space.key("k")).Err())
	assert.True(t, l.Allow("k", 3))
	require.Len(t, events, 2)
	assert.ErrorIs(t, events[1].Err, ratelimit.ErrExceedsLimit)
}

func TestReservationOfAStackSettlesItsCharges(t *testing.T) {
	f := newFixture(t)
	tokens := f.limiter(ratelimit.TokenBucket(ratelimit.PerHour(1000), 1000), "tokens")
	requests := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(10)), "requests")
	seen := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(5000)), "seen")
	l, err := ratelimit.All(ratelimit.By(tokens, identity), model.WithCost(ratelimit.By(requests, identity), func(string) int { return 1 }), model.AsShadow(ratelimit.By(seen, identity)))
	require.NoError(t, err)
	reserve := func(cost int) *ratelimit.Reservation {
		r, err := l.Reserve(t.Context(), "k", cost, 0)
		require.NoError(t, err)
		require.True(t, r.Allowed)
		return r
	}
	require.NoError(t, reserve(400).Settle(100))
	assert.Equal(t, []int{900, 9, 4900}, []int{f.left(tokens, "k"), f.left(requests, "k"), f.left(seen, "k")})
	require.NoError(t, reserve(400).Cancel())
	assert.Equal(t, []int{900, 9, 4900}, []int{f.left(tokens, "k"), f.left(requests, "k"), f.left(seen, "k")})
	require.NoError(t, reserve(0).Settle(500))
	assert.Equal(t, []int{400, 9, 4900}, []int{f.left(tokens, "k"), f.left(requests, "k"), f.left(seen, "k")})
	require.NoError(t, reserve(100).Settle(600))
	assert.Equal(t, []int{0, 8, 4300}, []int{f.left(tokens, "k"), f.left(requests, "k"), f.left(seen, "k")})
}

func TestALayersLimitCarriesTheSpendingOver(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.TokenBucket(ratelimit.PerHour(10), 10).Named("plan"), "plan")
	plan := ratelimit.Limit{}
	stack, err := ratelimit.All(model.WithLimit(ratelimit.By(l, identity), func(string) ratelimit.Limit { return plan }))
	require.NoError(t, err)
	d, err := stack.Take(t.Context(), "k", 4)
	require.NoError(t, err)
	assert.Equal(t, 6, d.Remaining)
	plan = ratelimit.FixedWindow(ratelimit.PerMinute(100))
	d, err = stack.Take(t.Context(), "k", 10)
	require.NoError(t, err)
	assert.Equal(t, 86, d.Remaining)
	assert.Equal(t, "plan", d.Limit.Name)
	plan = ratelimit.FixedWindow(ratelimit.PerMinute(-1))
	_, err = stack.Take(t.Context(), "k", 10)
	assert.ErrorIs(t, err, ratelimit.ErrInvalidLimit)
}

func TestAllOfChargesThePickedLayers(t *testing.T) {
	f := newFixture(t)
	var layers []ratelimit.Layer[string]
	var limiters []*Limiter
	for i := range 300 {
		limiters = append(limiters, f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(10)), fmt.Sprintf("of%d", i)))
		layers = append(layers, ratelimit.By(limiters[i], identity))
	}
	picked := []int{7, 299, 7}
	l, err := ratelimit.AllOf(func(_ string, which []int) []int { return append(which, picked...) }, layers...)
	require.NoError(t, err)
	assert.True(t, l.Allow("k", 2))
	assert.Equal(t, []int{10, 8, 8}, []int{f.left(limiters[0], "k"), f.left(limiters[7], "k"), f.left(limiters[299], "k")})
	assert.Len(t, l.Describe().Limits, 300)
	picked = []int{300}
	_, err = l.Take(t.Context(), "k", 1)
	assert.ErrorContains(t, err, "returned layer 300 of 300")
	picked = nil
	d, err := l.Take(t.Context(), "k", 1)
	require.NoError(t, err)
	assert.True(t, d.Allowed)
	assert.Equal(t, ratelimit.Unlimited(), d.Limit)
	for i := range 300 {
		picked = append(picked, i)
	}
	_, err = l.Take(t.Context(), "k", 1)
	assert.ErrorContains(t, err, "more than 255 layers apply")
}

func TestAFunctionMayPickFromATableOfItsOwn(t *testing.T) {
	f := newFixture(t)
	table := []int{1, 1, 0}
	pick := func(string, []int) []int { return table }
	limit := ratelimit.FixedWindow(ratelimit.PerHour(20))
	l, err := ratelimit.AllOf(pick, ratelimit.By(f.limiter(limit, "a"), identity), ratelimit.By(f.limiter(limit, "b"), identity))
	require.NoError(t, err)
	var running sync.WaitGroup
	for range 4 {
		running.Go(func() { l.Allow("k", 1) })
	}
	running.Wait()
	assert.Equal(t, []int{1, 1, 0}, table)
}

func TestOtherLayersErrorsAreNotReportedToAShadow(t *testing.T) {
	f := newFixture(t)
	var events []ratelimit.Event[string]
	watch := func(e ratelimit.Event[string]) { events = append(events, e) }
	small := ratelimit.By(f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(2)), "small"), identity)
	big := ratelimit.By(f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(200)), "big"), identity)
	l, err := ratelimit.All(small, model.ObservedBy(model.AsShadow(big), watch))
	require.NoError(t, err)
	_, err = l.Take(t.Context(), "k", 3)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
	assert.Empty(t, events, "the shadow was not asked")
}

func TestCostsTooLargeToAddUpAreRefused(t *testing.T) {
	f := newFixture(t)
	by := ratelimit.By(f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(2)), "l"), identity)
	l, err := ratelimit.All(model.WithCost(by, func(string) int { return 1 }), by)
	require.NoError(t, err)
	_, err = l.Take(t.Context(), "k", math.MaxInt)
	require.ErrorIs(t, err, ratelimit.ErrExceedsLimit)
}

func TestABlockedLayerOfCostZeroBindsNothing(t *testing.T) {
	f := newFixture(t)
	l, err := ratelimit.All(model.WithCost(ratelimit.By(f.limiter(ratelimit.Blocked(), "no"), identity), func(string) int { return 0 }))
	require.NoError(t, err)
	d, err := l.Take(t.Context(), "k", 3)
	require.NoError(t, err)
	assert.Equal(t, math.MaxInt, d.Remaining)
}

func TestObserveReceivesTheDecisionOfEachLayer(t *testing.T) {
	f := newFixture(t)
	var events []ratelimit.Event[string]
	watch := func(y ratelimit.Layer[string]) ratelimit.Layer[string] {
		return model.ObservedBy(y, func(e ratelimit.Event[string]) { events = append(events, e) })
	}
	one := ratelimit.By(f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(1)).Named("one"), "one"), identity)
	two := ratelimit.Global[string](f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("two"), "two"))
	l, err := ratelimit.All(watch(two), model.AsShadow(watch(one)))
	require.NoError(t, err)
	for range 2 {
		require.True(t, l.Allow("request", 1))
	}
	require.Len(t, events, 4)
	for i, e := range events {
		require.Equal(t, "request", e.Key, "the request, not the layer's key")
		require.Equal(t, []string{"two", "one"}[i%2], e.Decision.Limit.Name)
		require.Equal(t, i < 3, e.Decision.Allowed)
		require.Equal(t, i < 3, e.Spent)
	}
}

func TestGlobalHasOneBudget(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(10)), "global")
	stack, err := ratelimit.All(ratelimit.Global[string](l))
	require.NoError(t, err)
	assert.True(t, stack.Allow("a", 4))
	assert.True(t, stack.Allow("b", 4))
	assert.False(t, stack.Allow("c", 4))
	assert.Equal(t, 2, f.left(l, ""))
}

func TestErrorsOfLayersNameTheMissingPart(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(10)), "x")
	by := ratelimit.By(l, identity)
	for want, layers := range map[string][]ratelimit.Layer[string]{
		"at least one layer": {},
		"layer 1: this Layer is nil or zero: make one with By or Global": {by, {}},
		"another store":  {by, ratelimit.By(ratelimit.Must(ratelimit.New[string](l.Describe().Limits[0], nil)), identity)},
		"By: l is nil":   {ratelimit.By((*Limiter)(nil), identity)},
		"By: key is nil": {ratelimit.By[string](l, nil)},
	} {
		_, err := ratelimit.All(layers...)
		assert.ErrorContains(t, err, want)
	}
	_, err := ratelimit.AllOf(nil, by)
	assert.ErrorContains(t, err, "AllOf: pick is nil")
}

func TestLayerErrorsChargeNothing(t *testing.T) {
	f := newFixture(t)
	l := f.limiter(ratelimit.FixedWindow(ratelimit.PerHour(10)), "x")
	wrong := fmt.Errorf("no such user")
	stack, err := ratelimit.All(ratelimit.By(l, identity), ratelimit.By(l, func(string) (string, error) { return "", wrong }))
	require.NoError(t, err)
	_, err = stack.Take(t.Context(), "k", 1)
	assert.ErrorIs(t, err, wrong)
	stack, err = ratelimit.All(ratelimit.By(l, identity), model.WithCost(ratelimit.By(l, identity), func(string) int { return -1 }))
	require.NoError(t, err)
	_, err = stack.Take(t.Context(), "k", 1)
	assert.ErrorIs(t, err, ratelimit.ErrNegativeCost)
	stack, err = ratelimit.All(ratelimit.By(l, identity), ratelimit.By(l, identity))
	require.NoError(t, err)
	_, err = stack.Take(t.Context(), "k", 6)
	assert.ErrorIs(t, err, ratelimit.ErrExceedsLimit, "6 of 10, twice")
	assert.Equal(t, 10, f.left(l, "k"))
}
