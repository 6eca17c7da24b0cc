// Package promlimit counts the decisions of limiters, and how they stand, for Prometheus.
//
//	metrics, err := promlimit.New(prometheus.DefaultRegisterer)
//	…
//	limiter, err := ratelimit.New(limit, &ratelimit.Options[string]{
//		OnDecision: promlimit.OnDecision[string](metrics, "api"),
//	})
//	metrics.Table("api", limiter.Stats)
//
// Labels name limiters, limits, rules and plans, which whoever runs the program has named.
// No key, user or address is ever a label.
//
// A metric's label limiter is the name that each function here is given. All functions are
// safe for concurrent use; what they return may be called from any goroutine.
package promlimit

import (
	"context"
	"errors"
	"strconv"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/httplimit"
	"github.com/weir-go/ratelimit/policy"
)

// Metrics are the metrics of a program's limiters. Make one with [New]. The zero Metrics
// cannot be used.
type Metrics struct {
	reg       prometheus.Registerer
	decisions *prometheus.CounterVec
	spent     *prometheus.CounterVec
	degraded  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	http      *prometheus.CounterVec
	grpc      *prometheus.CounterVec
	rules     *prometheus.CounterVec
	requests  *prometheus.CounterVec
}

// New registers the metrics. The error is the registerer's; one of them is that the metrics
// are registered already.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if reg == nil {
		return nil, errors.New("promlimit: nil Registerer")
	}
	counter := func(name, help string, labels ...string) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: "ratelimit_" + name, Help: help}, labels)
	}
	m := &Metrics{
		reg:       reg,
		decisions: counter("decisions_total", "Decisions, by limiter, limit and outcome: allowed, denied, never, unavailable or error.", "limiter", "limit", "outcome"),
		spent:     counter("spent_units_total", "Cost that was charged.", "limiter", "limit"),
		degraded:  counter("degraded_decisions_total", "Decisions taken without the shared store.", "limiter"),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: "ratelimit_decision_duration_seconds", Help: "How long decisions took.",
			Buckets: []float64{.0001, .00025, .0005, .001, .0025, .005, .01, .025, .05, .1, .25, 1},
		}, []string{"limiter"}),
		http:     counter("http_requests_total", "HTTP requests, by what the middleware did with them.", "limiter", "outcome"),
		grpc:     counter("grpc_calls_total", "gRPC calls, and messages that were decided about, by what the interceptors did with them.", "limiter", "outcome"),
		rules:    counter("policy_rule_decisions_total", "Decisions of single rules, by rule, plan and outcome; with shadow rules, what they would have said.", "rule", "plan", "shadow", "outcome"),
		requests: counter("policy_requests_total", "Requests decided by policies, by outcome: those of decisions, or killed by the kill switch.", "outcome"),
	}
	for _, c := range []prometheus.Collector{m.decisions, m.spent, m.degraded, m.duration, m.http, m.grpc, m.rules, m.requests} {
		if err := reg.Register(c); err != nil {
			return nil, err
		}
	}
	return m, nil
}

// outcome is what became of a decision, as a label.
type outcome uint8

const (
	allowed     outcome = iota
	denied              // not now
	never               // the cost can never pass
	unavailable         // the engine could not decide
	failed              // another error

	outcomes = iota
)

var outcomeNames = [outcomes]string{"allowed", "denied", "never", "unavailable", "error"}

func outcomeOf(d ratelimit.Decision, err error) outcome {
	switch {
	case err == nil && d.Allowed:
		return allowed
	case err == nil:
		return denied
	case errors.Is(err, ratelimit.ErrExceedsLimit):
		return never
	case errors.Is(err, ratelimit.ErrUnavailable):
		return unavailable
	case errors.Is(err, ratelimit.ErrLimited), errors.Is(err, context.DeadlineExceeded):
		return denied // a Wait that would have been too long
	}
	return failed
}

// OnDecision returns a function for [ratelimit.Options.OnDecision], and for those of other
// engines: it counts decisions, and the cost that was spent.
func OnDecision[K any](m *Metrics, limiter string) func(ratelimit.Event[K]) {
	var known sync.Map // the limit's name → *counters: to look a label up again is dearer
	degraded := m.degraded.WithLabelValues(limiter)
	return func(e ratelimit.Event[K]) {
		c, ok := known.Load(e.Decision.Limit.Name)
		if !ok {
			c, _ = known.LoadOrStore(e.Decision.Limit.Name, m.counters(limiter, e.Decision.Limit.Name))
		}
		counters := c.(*counters)
		counters.decisions[outcomeOf(e.Decision, e.Err)].Inc()
		if e.Spent {
			counters.spent.Add(float64(e.Cost))
		}
		if e.Decision.Degraded {
			degraded.Inc()
		}
	}
}

// counters are those of one limit.
type counters struct {
	decisions [outcomes]prometheus.Counter
	spent     prometheus.Counter
}

func (m *Metrics) counters(limiter, limit string) *counters {
	c := &counters{spent: m.spent.WithLabelValues(limiter, limit)}
	for i, name := range outcomeNames {
		c.decisions[i] = m.decisions.WithLabelValues(limiter, limit, name)
	}
	return c
}

// HTTP returns a function for [httplimit.Options.OnDecision].
func (m *Metrics) HTTP(limiter string) func(httplimit.Event) {
	return func(e httplimit.Event) { m.http.WithLabelValues(limiter, e.Outcome.String()).Inc() }
}

// GRPC returns a function for OnOutcome of package grpclimit, which makes a function for its
// Options.OnDecision of it. So this package does not depend on gRPC.
func (m *Metrics) GRPC(limiter string) func(httplimit.Outcome) {
	return func(o httplimit.Outcome) { m.grpc.WithLabelValues(limiter, o.String()).Inc() }
}

// Policy returns a function for [policy.Options.OnDecision].
func (m *Metrics) Policy() func(policy.Decision) {
	return func(d policy.Decision) {
		if d.KillSwitch {
			m.requests.WithLabelValues("killed").Inc()
			return
		}
		m.requests.WithLabelValues(outcomeNames[outcomeOf(d.Decision, d.Err)]).Inc()
		for i := range d.Rules {
			m.rule(&d.Rules[i], d)
		}
	}
}

// rule counts what a rule said. If the engine did not tell, the request's outcome is counted for
// the rule that it is due to, and nothing for others.
func (m *Metrics) rule(r *policy.RuleDecision, d policy.Decision) {
	o := outcomeOf(r.Decision, nil)
	if !r.Told {
		if d.Decision.Limit.Name != r.Rule {
			return
		}
		o = outcomeOf(d.Decision, d.Err)
	}
	m.rules.WithLabelValues(r.Rule, r.Plan, strconv.FormatBool(r.Shadow), outcomeNames[o]).Inc()
}

// Timed returns a limiter that measures how long the decisions of another take: of one whose
// budgets are remote. If l has a method Limits() []ratelimit.Limit, so has the result.
func Timed[K any](m *Metrics, limiter string, l ratelimit.Reserver[K]) ratelimit.Reserver[K] {
	return &timed[K]{l, m.duration.WithLabelValues(limiter)}
}

type timed[K any] struct {
	ratelimit.Reserver[K]
	seconds prometheus.Observer
}

func (t *timed[K]) since(start time.Time) { t.seconds.Observe(time.Since(start).Seconds()) }

func (t *timed[K]) Allow(key K, cost int) bool {
	defer t.since(time.Now())
	return t.Reserver.Allow(key, cost)
}

func (t *timed[K]) Take(ctx context.Context, key K, cost int) (ratelimit.Decision, error) {
	defer t.since(time.Now())
	return t.Reserver.Take(ctx, key, cost)
}

func (t *timed[K]) Reserve(ctx context.Context, key K, cost int, maxDelay time.Duration) (*ratelimit.Reservation, error) {
	defer t.since(time.Now())
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
