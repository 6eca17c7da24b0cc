// Package otellimit counts the decisions of limiters, and how they stand, for OpenTelemetry.
//
//	metrics, err := otellimit.New(otel.Meter("myapp"))
//	…
//	limiter, err := ratelimit.New(limit, &ratelimit.Options[string]{
//		OnDecision: otellimit.OnDecision[string](metrics, "api"),
//	})
//	err = metrics.Table("api", limiter.Stats)
//
// Attributes name limiters, limits, rules and plans, which whoever runs the program has named.
// No key, user or address is ever an attribute. The instruments are those of package promlimit
// under dotted names.
//
// All functions are safe for concurrent use; what they return may be called from any goroutine.
package otellimit

import (
	"context"
	"errors"
	"sync"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

// Metrics are the instruments of a program's limiters. Make one with [New]. The zero Metrics
// cannot be used.
type Metrics struct {
	meter     metric.Meter
	decisions metric.Int64Counter
	spent     metric.Int64Counter
	degraded  metric.Int64Counter
	duration  metric.Float64Histogram
	http      metric.Int64Counter
	grpc      metric.Int64Counter
	rules     metric.Int64Counter
	requests  metric.Int64Counter
}

// New makes the instruments. The error is the meter's.
func New(meter metric.Meter) (*Metrics, error) {
	if meter == nil {
		return nil, errors.New("otellimit: nil Meter")
	}
	m := &Metrics{meter: meter}
	var err error
	counter := func(to *metric.Int64Counter, name, unit, help string) {
		c, e := meter.Int64Counter("ratelimit."+name, metric.WithUnit(unit), metric.WithDescription(help))
		*to, err = c, errors.Join(err, e)
	}
	counter(&m.decisions, "decisions", "{decision}", "Decisions, by limiter, limit and outcome: allowed, denied, never, unavailable or error.")
	counter(&m.spent, "spent", "{unit}", "Cost that was charged.")
	counter(&m.degraded, "decisions.degraded", "{decision}", "Decisions taken without the shared store.")
	counter(&m.http, "http.requests", "{request}", "HTTP requests, by what the middleware did with them.")
	counter(&m.grpc, "grpc.calls", "{call}", "gRPC calls, and messages that were decided about, by what the interceptors did with them.")
	counter(&m.rules, "policy.rule.decisions", "{decision}", "Decisions of single rules; with shadow rules, what they would have said.")
	counter(&m.requests, "policy.requests", "{request}", "Requests decided by policies, by outcome.")
	h, e := meter.Float64Histogram("ratelimit.decision.duration", metric.WithUnit("s"), metric.WithDescription("How long decisions took."),
		metric.WithExplicitBucketBoundaries(.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1))
	m.duration, err = h, errors.Join(err, e)
	if err != nil {
		return nil, err
	}
	return m, nil
}

var outcomeNames = [...]string{"allowed", "denied", "never", "unavailable", "error"}

// outcomeOf returns what became of a decision, as an index of outcomeNames.
func outcomeOf(d ratelimit.Decision, err error) int {
	switch {
	case err == nil && d.Allowed:
		return 0
	case err == nil, errors.Is(err, ratelimit.ErrLimited), errors.Is(err, context.DeadlineExceeded):
		return 1 // denied, or a Wait that would have been too long
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		return 2
	case errors.Is(err, ratelimit.ErrUnavailable):
		return 3
	}
	return 4
}

// set returns attributes that are made once and used often.
func set(kv ...attribute.KeyValue) metric.MeasurementOption {
	return metric.WithAttributeSet(attribute.NewSet(kv...))
}

// options are the attributes of one limit's instruments.
type options struct {
	decisions [len(outcomeNames)][]metric.AddOption
	spent     []metric.AddOption
}

func newOptions(limiter, limit string) *options {
	l, n := attribute.String("limiter", limiter), attribute.String("limit", limit)
	o := &options{spent: []metric.AddOption{set(l, n)}}
	for i, name := range outcomeNames {
		o.decisions[i] = []metric.AddOption{set(l, n, attribute.String("outcome", name))}
	}
	return o
}

// OnDecision returns a function for [ratelimit.Options.OnDecision], and for those of other
// engines: it counts decisions, and the cost that was spent.
func OnDecision[K any](m *Metrics, limiter string) func(ratelimit.Event[K]) {
	var known sync.Map // the limit's name → *options
	of := []metric.AddOption{set(attribute.String("limiter", limiter))}
	ctx := context.Background()
	return func(e ratelimit.Event[K]) {
		v, ok := known.Load(e.Decision.Limit.Name)
		if !ok {
			v, _ = known.LoadOrStore(e.Decision.Limit.Name, newOptions(limiter, e.Decision.Limit.Name))
		}
		o := v.(*options)
		m.decisions.Add(ctx, 1, o.decisions[outcomeOf(e.Decision, e.Err)]...)
		if e.Spent {
			m.spent.Add(ctx, int64(e.Cost), o.spent...)
		}
		if e.Decision.Degraded {
			m.degraded.Add(ctx, 1, of...)
		}
	}
}

// HTTP returns a function for [httplimit.Options.OnDecision].
func (m *Metrics) HTTP(limiter string) func(httplimit.Event) {
	return func(e httplimit.Event) {
		m.http.Add(e.Request.Context(), 1, set(attribute.String("limiter", limiter), attribute.String("outcome", e.Outcome.String())))
	}
}

// GRPC returns a function for OnOutcome of package grpclimit, which makes a function for its
// Options.OnDecision of it. So this package does not depend on gRPC.
func (m *Metrics) GRPC(limiter string) func(httplimit.Outcome) {
	ctx := context.Background()
	return func(o httplimit.Outcome) {
		m.grpc.Add(ctx, 1, set(attribute.String("limiter", limiter), attribute.String("outcome", o.String())))
	}
}

// Policy returns a function for [policy.Options.OnDecision].
func (m *Metrics) Policy() func(policy.Decision) {
	ctx := context.Background()
	return func(d policy.Decision) {
		outcome := "killed"
		if !d.KillSwitch {
			outcome = outcomeNames[outcomeOf(d.Decision, d.Err)]
		}
		m.requests.Add(ctx, 1, set(attribute.String("outcome", outcome)))
		for i := range d.Rules {
			m.rule(ctx, &d.Rules[i], d)
		}
	}
}

// rule counts what a rule said. If the engine did not tell, the request's outcome is counted for
// the rule that it is due to, and nothing for others.
func (m *Metrics) rule(ctx context.Context, r *policy.RuleDecision, d policy.Decision) {
	o := outcomeOf(r.Decision, nil)
	if !r.Told {
		if d.Decision.Limit.Name != r.Rule {
			return
		}
		o = outcomeOf(d.Decision, d.Err)
	}
	m.rules.Add(ctx, 1, set(attribute.String("rule", r.Rule), attribute.String("plan", r.Plan),
		attribute.Bool("shadow", r.Shadow), attribute.String("outcome", outcomeNames[o])))
}

// Timed returns a limiter that measures how long the decisions of another take: of one whose
// budgets are remote. If l has a method Limits() []ratelimit.Limit, so has the result.
func Timed[K any](m *Metrics, limiter string, l ratelimit.Reserver[K]) ratelimit.Reserver[K] {
	return &timed[K]{l, m.duration, set(attribute.String("limiter", limiter))}
}

type timed[K any] struct {
	ratelimit.Reserver[K]
	duration metric.Float64Histogram
	of       metric.MeasurementOption
}

func (t *timed[K]) since(ctx context.Context, start time.Time) {
	t.duration.Record(ctx, time.Since(start).Seconds(), t.of)
}

func (t *timed[K]) Allow(key K, cost int) bool {
	defer t.since(context.Background(), time.Now())
	return t.Reserver.Allow(key, cost)
}

func (t *timed[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	defer t.since(ctx, time.Now())
	return t.Reserver.Take(ctx, key, cost)
}

func (t *timed[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	defer t.since(ctx, time.Now())
	return t.Reserver.Reserve(ctx, key, cost, maxDelay)
}

// Wait is not measured: most of it is sleep.
func (t *timed[K]) Wait(ctx context.Context, key K, cost int) error {
	return ratelimit.Wait(ctx, t.Reserver, key, cost)
}

func (t *timed[K]) Limits() []ratelimit.Limit {
	if l, ok := t.Reserver.(interface{ Limits() []ratelimit.Limit }); ok {
		return l.Limits()
	}
	return nil
}
