// Package otellimit exports limiters' metrics for OpenTelemetry.
//
//	metrics, err := otellimit.New(otel.Meter("myapp"))
//	…
//	limiter, err := ratelimit.New(limit, &ratelimit.Options[string]{
//		OnDecision: otellimit.OnDecision[string](metrics, "api"),
//	})
//	err = metrics.Register("api", limiter)
//
// The attribute limiter is the name passed to each function.
//
// No key, user or address is ever an attribute. The instruments are
// promlimit's metrics, with dotted names. For the list see docs/metrics.md.
//
// All functions, and the functions that they return, are safe for concurrent use.
package otellimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/figures"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/stats"
)

// Metrics are the instruments of a program's limiters. Make one with [New]. The zero Metrics
// cannot be used.
type Metrics struct {
	meter      metric.Meter
	mu         sync.Mutex      // guards registered
	registered map[string]bool // the names of the registered groups and their limiters

	decisions metric.Int64Counter
	spent     metric.Int64Counter
	degraded  metric.Int64Counter
	duration  metric.Float64Histogram
	rules     figures.RuleCounts
}

// New makes the instruments. It returns the meter's error, or an error if the meter is nil.
func New(meter metric.Meter) (*Metrics, error) {
	if optional.IsNil(meter) {
		return nil, optional.Nil("otellimit: New: meter")
	}
	m := &Metrics{meter: meter, registered: map[string]bool{}}
	var err error
	for figure, to := range map[*figures.Figure]*metric.Int64Counter{
		&figures.Decisions: &m.decisions, &figures.Spent: &m.spent, &figures.Degraded: &m.degraded,
	} {
		c, e := meter.Int64Counter(figure.OpenTelemetry(), metric.WithUnit(figure.Unit), metric.WithDescription(figure.Help))
		*to, err = c, errors.Join(err, e)
	}
	h, e := meter.Float64Histogram(figures.Duration.OpenTelemetry(), metric.WithUnit(figures.Duration.Unit),
		metric.WithDescription(figures.Duration.Help), metric.WithExplicitBucketBoundaries(figures.Buckets...))
	m.duration, err = h, errors.Join(err, e)
	if err != nil {
		return nil, err
	}
	return m, m.register("", m.rules.Group())
}

// set returns attributes as an option that is made once for many measurements.
func set(kv ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(kv...))
}

// options are the attributes of one limit's measurements.
type options struct {
	decisions [outcome.Count][]metric.AddOption
	spent     []metric.AddOption
}

func newOptions(limiter, limit string) *options {
	l, n := attribute.String("limiter", limiter), attribute.String("limit", limit)
	o := &options{spent: []metric.AddOption{set(l, n)}}
	for i := range outcome.Count {
		o.decisions[i] = []metric.AddOption{set(l, n, attribute.String("outcome", outcome.Outcome(i).String()))}
	}
	return o
}

func (m *Metrics) mustBeMade() {
	if m == nil || m.meter == nil {
		panic(optional.Zero("otellimit", "Metrics", "New"))
	}
}

// OnDecision returns a function for the option OnDecision in [ratelimit.Options] and in other
// engines' options. It counts decisions by limit and outcome, and adds up the spent cost.
func OnDecision[K any](m *Metrics, limiter string) func(ratelimit.Event[K]) {
	m.mustBeMade()
	var known sync.Map // from the limit's name to *options
	of := []metric.AddOption{set(attribute.String("limiter", limiter))}
	ctx := context.Background()
	return func(e ratelimit.Event[K]) {
		v, ok := known.Load(e.Decision.Limit.Name)
		if !ok {
			v, _ = known.LoadOrStore(e.Decision.Limit.Name, newOptions(limiter, e.Decision.Limit.Name))
		}
		o := v.(*options)
		m.decisions.Add(ctx, 1, o.decisions[outcome.Of(e.Decision, e.Err)]...)
		if e.Spent {
			m.spent.Add(ctx, int64(e.Cost), o.spent...)
		}
		if e.Decision.Degraded {
			m.degraded.Add(ctx, 1, of...)
		}
	}
}

// OnPolicyDecision returns a function for package policy's option OnDecision. It counts decisions by
// rule. If the policies are registered with [Metrics.Register], a rule's series disappear when the rule
// is no longer in force. The function does not keep its argument, so set ReuseRules in the same options.
func (m *Metrics) OnPolicyDecision() func(stats.PolicyDecision) {
	m.mustBeMade()
	return m.rules.Count
}

// Timed returns a limiter that decides as l does, and measures each decision's duration in
// seconds. Use it for limiters whose budgets are on a server. It does not measure Wait.
func Timed[K any](m *Metrics, limiter string, l ratelimit.Reserver[K]) ratelimit.Reserver[K] {
	m.mustBeMade()
	if optional.IsNil(l) {
		panic(optional.Nil("otellimit: Timed: l"))
	}
	of := set(attribute.String("limiter", limiter))
	return figures.Timed(l, func(ctx context.Context, took time.Duration) { m.duration.Record(ctx, took.Seconds(), of) })
}
