package promlimit_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/promlimit"
)

// table is a user's source of figures.
type table struct{}

func (table) Stats() ratelimit.Stats { return ratelimit.Stats{} }

// calls has an interceptor's Stats.
type calls struct{}

func (calls) Stats() httplimit.Stats { return httplimit.Stats{} }

func TestNewReturnsTheRegisterersError(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	_, err = promlimit.New(reg)
	var already prometheus.AlreadyRegisteredError
	require.ErrorAs(t, err, &already)
	require.NoError(t, m.Register("a", table{}))
	err = m.Register("a", table{})
	require.ErrorContains(t, err, `of limiter "a"`)
	require.ErrorAs(t, err, &already)
	require.NoError(t, m.Register("b", table{}))
	for _, none := range []prometheus.Registerer{nil, (*prometheus.Registry)(nil)} {
		_, err = promlimit.New(none)
		require.EqualError(t, err, "promlimit: New: reg is nil")
	}
}

// refusing is a Registerer. It registers a number of collectors, and refuses all others.
type refusing struct {
	prometheus.Registerer
	left int
}

func (r *refusing) Register(c prometheus.Collector) error {
	if r.left--; r.left < 0 {
		return errors.New("no more")
	}
	return r.Registerer.Register(c)
}

func TestNewThatFailsLeavesNothingRegistered(t *testing.T) {
	reg := prometheus.NewRegistry()
	for n := range 5 {
		_, err := promlimit.New(&refusing{reg, n})
		require.EqualError(t, err, "no more")
	}
	_, err := promlimit.New(&refusing{reg, 5})
	require.NoError(t, err)
}

func TestErrorsAreCountedByTheirKind(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	hook := promlimit.OnDecision[string](m, "redis")
	for _, err := range []error{
		fmt.Errorf("%w: %w", ratelimit.ErrUnavailable, context.DeadlineExceeded), // a timeout of the store
		ratelimit.ErrUnavailable,
		context.DeadlineExceeded, // the caller's deadline
		context.Canceled,
		ratelimit.ErrTableFull,
		ratelimit.ErrExceedsLimit,
		ratelimit.ErrBlocked,
	} {
		hook(ratelimit.Event[string]{Key: "k", Cost: 1, Err: fmt.Errorf("x: %w", err)})
	}
	assert.NoError(t, testutil.GatherAndCompare(reg, strings.NewReader(`
# HELP ratelimit_decisions_total Decisions, by limiter, limit and outcome: allowed, denied, exceeds, unavailable, rejected or error. Each layer counts its own decision, also of a request that another layer denies.
# TYPE ratelimit_decisions_total counter
ratelimit_decisions_total{limit="",limiter="redis",outcome="allowed"} 0
ratelimit_decisions_total{limit="",limiter="redis",outcome="denied"} 0
ratelimit_decisions_total{limit="",limiter="redis",outcome="error"} 3
ratelimit_decisions_total{limit="",limiter="redis",outcome="exceeds"} 2
ratelimit_decisions_total{limit="",limiter="redis",outcome="rejected"} 0
ratelimit_decisions_total{limit="",limiter="redis",outcome="unavailable"} 2
`), "ratelimit_decisions_total"))
}

func TestTimedIsTheLimiterItMeasures(t *testing.T) {
	m, err := promlimit.New(prometheus.NewRegistry())
	require.NoError(t, err)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2))
	l := promlimit.Timed(m, "x", ratelimit.Reserver[string](ratelimit.Must(ratelimit.New[string](limit, nil))))
	assert.Equal(t, []ratelimit.Limit{limit}, ratelimit.Describe(l).Limits)
	assert.True(t, l.Allow("k", 1))
	r, err := l.Reserve(t.Context(), "k", 1, 0)
	require.NoError(t, err)
	require.NoError(t, r.Cancel())
	require.NoError(t, ratelimit.Wait(t.Context(), l, "k", 1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, ratelimit.Wait(ctx, l, "k", 1), context.DeadlineExceeded, "at once: the next one fits in half an hour")
	_, err = l.Take(t.Context(), "k", -1)
	require.True(t, errors.Is(err, ratelimit.ErrNegativeCost))
}

func TestNamesThatAreNotUTF8AreMadeSo(t *testing.T) {
	reg := prometheus.NewRegistry()
	m, err := promlimit.New(reg)
	require.NoError(t, err)
	const name = "caf\xe9"
	promlimit.OnDecision[string](m, name)(ratelimit.Event[string]{Cost: 1})
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2))
	promlimit.Timed(m, name, ratelimit.Reserver[string](ratelimit.Must(ratelimit.New[string](limit, nil)))).Allow("k", 1)
	require.NoError(t, m.Register(name, table{}))
	require.NoError(t, m.Register(name, calls{}))
	_, err = reg.Gather()
	require.NoError(t, err)
}

func BenchmarkOnDecision(b *testing.B) {
	m, err := promlimit.New(prometheus.NewRegistry())
	require.NoError(b, err)
	hook := promlimit.OnDecision[string](m, "api")
	limit := ratelimit.TokenBucket(ratelimit.PerSecond(1_000_000_000), 1_000_000_000).Named("api")
	for name, on := range map[string]func(ratelimit.Event[string]){"none": nil, "empty": func(ratelimit.Event[string]) {}, "prometheus": hook} {
		b.Run("hook="+name, func(b *testing.B) {
			l := ratelimit.Must(ratelimit.New(limit, &ratelimit.Options[string]{OnDecision: on}))
			for b.Loop() {
				_, _ = l.Take(context.Background(), "k", 1)
			}
		})
	}
}
