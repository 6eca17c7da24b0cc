package otellimit_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric/noop"
	sdk "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/otellimit"
)

// values returns the integer figures, by name and attributes.
func values(out metricdata.ResourceMetrics) map[string]int64 {
	all := map[string]int64{}
	add := func(name string, points []metricdata.DataPoint[int64]) {
		for _, p := range points {
			all[name+" "+p.Attributes.Encoded(attribute.DefaultEncoder())] = p.Value
		}
	}
	for _, scope := range out.ScopeMetrics {
		for _, m := range scope.Metrics {
			switch data := m.Data.(type) {
			case metricdata.Sum[int64]:
				add(m.Name, data.DataPoints)
			case metricdata.Gauge[int64]:
				add(m.Name, data.DataPoints)
			}
		}
	}
	return all
}

func TestTimedIsTheLimiterItMeasures(t *testing.T) {
	m, err := otellimit.New(noop.Meter{})
	require.NoError(t, err)
	limit := ratelimit.FixedWindow(ratelimit.PerHour(2))
	l := otellimit.Timed(m, "x", ratelimit.Reserver[string](ratelimit.Must(ratelimit.New[string](limit, nil))))
	assert.Equal(t, []ratelimit.Limit{limit}, ratelimit.Describe(l).Limits)
	assert.True(t, l.Allow("k", 1))
	r, err := l.Reserve(t.Context(), "k", 1, 0)
	require.NoError(t, err)
	require.NoError(t, r.Cancel())
	require.NoError(t, ratelimit.Wait(t.Context(), l, "k", 1))
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	require.ErrorIs(t, ratelimit.Wait(ctx, l, "k", 1), context.DeadlineExceeded)
}

func TestErrorsAreCountedByTheirKind(t *testing.T) {
	reader := sdk.NewManualReader()
	m, err := otellimit.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("test"))
	require.NoError(t, err)
	hook := otellimit.OnDecision[string](m, "redis")
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
	var out metricdata.ResourceMetrics
	require.NoError(t, reader.Collect(t.Context(), &out))
	assert.Equal(t, map[string]int64{
		"ratelimit.decisions limit=,limiter=redis,outcome=error":       3,
		"ratelimit.decisions limit=,limiter=redis,outcome=exceeds":     2,
		"ratelimit.decisions limit=,limiter=redis,outcome=unavailable": 2,
	}, values(out))
}

// source is a user's source of figures.
type source[S any] struct{}

func (source[S]) Stats() (s S) { return s }

func TestTwoOfOneNameAreRefused(t *testing.T) {
	m, err := otellimit.New(noop.Meter{})
	require.NoError(t, err)
	require.NoError(t, m.Register("a", source[ratelimit.Stats]{}))
	require.NoError(t, m.Register("b", source[ratelimit.Stats]{}))
	require.ErrorContains(t, m.Register("a", source[ratelimit.Stats]{}), "registered already")
	require.NoError(t, m.Register("a", source[lease.Stats]{}), "another kind")
	require.Error(t, m.Register("a", source[lease.Stats]{}))
}

func TestBadInput(t *testing.T) {
	_, err := otellimit.New(nil)
	require.ErrorContains(t, err, "meter is nil")
	m, err := otellimit.New(noop.Meter{})
	require.NoError(t, err)
	require.EqualError(t, m.Register("c", nil), `otellimit: Register: source is nil`)
	require.ErrorContains(t, m.Register("c", source[ratelimit.Stats]{}.Stats), "func() ratelimit.Stats is neither a limiter")
}

func Example() {
	reader := sdk.NewManualReader() // a program uses a periodic reader with an exporter
	metrics, err := otellimit.New(sdk.NewMeterProvider(sdk.WithReader(reader)).Meter("example"))
	if err != nil {
		panic(err)
	}
	limiter, err := ratelimit.New(ratelimit.FixedWindow(ratelimit.PerHour(2)).Named("hourly"),
		&ratelimit.Options[string]{OnDecision: otellimit.OnDecision[string](metrics, "api")})
	if err != nil {
		panic(err)
	}
	for range 3 {
		limiter.Allow("user:42", 1)
	}
	var out metricdata.ResourceMetrics
	if err := reader.Collect(context.Background(), &out); err != nil {
		panic(err)
	}
	fmt.Println(values(out)["ratelimit.decisions limit=hourly,limiter=api,outcome=denied"], "denied")
	// Output: 1 denied
}
