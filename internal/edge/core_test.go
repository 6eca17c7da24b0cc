package edge_test

import (
	"cmp"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/edge"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/keyfunc"
)

func TestASkippedRequestIsCountedAndNotDecided(t *testing.T) {
	m := newMiddleware(t, failing{}, edge.Options[*request]{Skip: func(r *request) bool { return r.ctx.Err() != nil }})
	assert.True(t, m.Skips(&request{cancelled()}))
	assert.False(t, m.Skips(&request{t.Context()}))
	assert.Equal(t, edge.Stats{Skipped: 1}, m.Stats())
	assert.False(t, newMiddleware(t, failing{}, edge.Options[*request]{}).Skips(&request{cancelled()}))
}

// deciding is a limiter that makes the same decision each time.
type deciding ratelimit.Decision

func (d deciding) Allow(*request, int) bool { return d.Allowed }
func (d deciding) Take(context.Context, *request, int) (ratelimit.Decision, error) {
	return ratelimit.Decision(d), nil
}

func TestRequestsThatAreNotDecidedAreLogged(t *testing.T) {
	layer := ratelimit.By(ratelimit.Must(ratelimit.New[string](ratelimit.Unlimited(), nil)), func(*request) (string, error) { return "", keyfunc.ErrNoKey })
	for name, row := range map[string]struct {
		limiter ratelimit.Limiter[*request]
		want    string
		stats   edge.Stats
	}{
		"no key, without the layer": {ratelimit.Must(ratelimit.All(layer)), `level=INFO msg="test: request not decided" at=7 outcome=rejected error="no key" unlogged=0` + "\n", edge.Stats{Rejected: 3}},
		"no store": {failing{ratelimit.ErrUnavailable}, `level=ERROR msg="test: request not decided" at=7 outcome=failed error="ratelimit: unavailable" unlogged=0` + "\n",
			edge.Stats{Failed: 3}},
		"denied":             {deciding{}, "", edge.Stats{Denied: 3}},
		"by half a decision": {deciding{Allowed: true, Degraded: true}, "", edge.Stats{Allowed: 3, Degraded: 3}},
	} {
		t.Run(name, func(t *testing.T) {
			log, lines := logger()
			m := newMiddleware(t, row.limiter, edge.Options[*request]{Logger: log, About: func(*request) []any { return []any{"at", 7} }})
			for range 3 {
				m.pass(t.Context())
			}
			assert.Equal(t, row.want, lines.String())
			assert.Equal(t, row.stats, m.Stats())
		})
	}
}

func TestADeniedRequestWaitsUntilAHigherCostPasses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := ratelimit.Map(ratelimit.Must(ratelimit.New[string](ratelimit.TokenBucket(ratelimit.PerSecond(1), 5).Named("few"), nil)), client)
		m := newMiddleware(t, l, edge.Options[*request]{})
		for n := range 6 {
			e := m.pass(t.Context())
			m.WaitFor(&e, 3)
			want := time.Duration(0)
			if n == 5 {
				want = 3 * time.Second
				a := m.Answer(&e, 0)
				assert.Equal(t, "rate limit exceeded: few", a.Message)
				assert.Same(t, a.Limit, m.Answer(&e, 0).Limit, "the texts of a limit are made once")
				assert.Equal(t, want, a.Wait)
			}
			assert.Equal(t, want, e.Decision.RetryAfter)
			m.WaitFor(&e, 1)
			assert.Equal(t, want, e.Decision.RetryAfter, "not less")
		}
		m = newMiddleware(t, deciding{RetryAfter: time.Second}, edge.Options[*request]{})
		e := m.pass(t.Context())
		m.WaitFor(&e, 3)
		assert.Equal(t, time.Second, e.Decision.RetryAfter, "without a Peek")
	})
}

// stayed is a stack that holds units until requests end, so no Take can succeed.
type stayed struct {
	*ratelimit.Layered[*request]
	t *testing.T
}

func (s stayed) Take(context.Context, *request, int) (ratelimit.Decision, error) {
	s.t.Error("a Take that cannot succeed")
	return ratelimit.Decision{}, nil
}

func TestUnitsThatRequestsHoldAreReservedAtOnce(t *testing.T) {
	m := newMiddleware(t, stayed{stack(ratelimit.Concurrent(1, time.Minute)), t}, edge.Options[*request]{})
	assert.Equal(t, edge.Allowed, m.pass(t.Context()).Outcome)
}

// A key's own limit may hold units although Describe does not return it.
func TestAKeysOwnLimitMayHoldUnits(t *testing.T) {
	one := ratelimit.Concurrent(1, time.Minute)
	l := ratelimit.Must(ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(9)), &ratelimit.Options[string]{LimitFor: func(string) ratelimit.Limit { return one }}))
	for name, of := range map[string]ratelimit.Limiter[*request]{
		"a stack":               ratelimit.Must(ratelimit.All(ratelimit.By(l, client))),
		"a limiter, found once": ratelimit.Map(l, client), // the first refused Take shows it
	} {
		m := newMiddleware(t, of, edge.Options[*request]{})
		for range 2 {
			e := m.serve(t.Context(), func(ctx context.Context, _ *edge.Charge[*request]) {
				assert.Equal(t, edge.Denied, m.pass(ctx).Outcome, name)
			})
			assert.Equal(t, edge.Allowed, e.Outcome, name)
		}
	}
}

func TestARequestIsSettledAtItsRealCost(t *testing.T) {
	for name, row := range map[string]struct {
		opts edge.Options[*request]
		left [2]int // the remaining budget of 100, without and with a Concurrent layer
	}{
		"settled":     {edge.Options[*request]{Settles: true, Cost: func(*request) int { return 5 }}, [2]int{98, 98}},
		"not settled": {edge.Options[*request]{Cost: func(*request) int { return 5 }}, [2]int{95, 98}},
		"free":        {edge.Options[*request]{Cost: func(*request) int { return 0 }}, [2]int{100, 100}},
	} {
		window := ratelimit.FixedWindow(ratelimit.PerHour(100))
		for n, l := range []*ratelimit.Layered[*request]{stack(window), stack(window, ratelimit.Concurrent(100, time.Minute).Named("atOnce"))} {
			m := newMiddleware(t, l, row.opts)
			e := m.Event(&request{t.Context()})
			charge := m.Charge(&e, m.Decide(&e, m.Settles))
			assert.Equal(t, edge.Allowed, e.Outcome, name)
			charge.Serve(t.Context())
			assert.Equal(t, l.Describe().Holds && e.Cost > 0, charge.Stay() != nil, name)
			charge.Settle(func(cost int) int { return max(0, cost-3) })
			charge.End()
			assert.Equal(t, row.left[n], left(t, l), name)
		}
	}
}

// dropping is a limiter with DropsRequests.
type dropping struct {
	failing
	drops bool
}

func (d dropping) DropsRequests() bool { return d.drops }

func TestARequestMayBeUsedAgainIfItsLimiterDropsIt(t *testing.T) {
	for want, limiters := range map[bool][]ratelimit.Limiter[*request]{
		true: {stack(ratelimit.Unlimited()), dropping{drops: true}}, false: {failing{}, dropping{}},
	} {
		for _, l := range limiters {
			assert.Equal(t, want, newMiddleware(t, l, edge.Options[*request]{}).DropsRequests())
		}
	}
	assert.Equal(t, []string{"failed-open", "rejected", "none"}, []string{edge.FailedOpen.String(), edge.Rejected.String(), edge.Outcome(77).String()})
}

func TestPermitsAreWaitedForUntilMaxWait(t *testing.T) {
	const half = 500 * time.Millisecond
	for name, c := range map[string]struct {
		maxWait, deadline, released, took time.Duration // if released is 0, the slot is free
		err                               error
		text                              string
	}{
		"a free slot":                {maxWait: time.Second},
		"MaxWait is over":            {maxWait: time.Second, released: time.Hour, took: time.Second, err: ratelimit.ErrLimited, text: "no permit within MaxWait, which is 1s"},
		"the request's own deadline": {maxWait: time.Second, released: time.Hour, deadline: half, took: half, err: context.DeadlineExceeded},
		"a slot in time":             {maxWait: time.Second, released: half, took: half},
		"no MaxWait":                 {released: time.Hour, took: time.Hour},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := ratelimit.Must(inflight.New(1, &inflight.Options[string]{MaxQueue: 9}))
				if c.released > 0 {
					first, _, err := edge.NewPermits("test", l, 0).Acquire(t.Context(), "k")
					require.NoError(t, err)
					time.AfterFunc(c.released, first.Release)
				}
				p := edge.NewPermits("test", l, c.maxWait)
				ctx := outcome.WatchRefusals(within(cmp.Or(c.deadline, 2*time.Hour)))
				begin := time.Now()
				permit, waited, err := p.Acquire(ctx, "k")
				assert.Equal(t, c.took, time.Since(begin))
				require.ErrorIs(t, err, c.err)
				assert.Equal(t, c.text != "", errors.Is(err, ratelimit.ErrLimited))
				assert.Equal(t, c.err != nil, outcome.WasRefused(ctx))
				counted := func() (n [3]uint64) { n[0], n[1], n[2] = p.Counted(); return n }
				if err != nil {
					assert.ErrorContains(t, err, c.text)
					assert.Equal(t, [3]uint64{0, 1, 0}, counted())
					return
				}
				assert.Equal(t, c.took, waited)
				p.Depart()
				assert.Equal(t, [3]uint64{1, 0, 1}, counted())
				p.Land()
				assert.Equal(t, [3]uint64{1, 0, 0}, counted())
				permit.Release()
			})
		})
	}
}
