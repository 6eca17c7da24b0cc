// Package promlimit exports limiters' metrics for Prometheus.
//
//	metrics, err := promlimit.New(prometheus.DefaultRegisterer)
//	…
//	limiter, err := ratelimit.New(limit, &ratelimit.Options[string]{
//		OnDecision: promlimit.OnDecision[string](metrics, "api"),
//	})
//	metrics.Register("api", limiter)
//
// No key, user or address is ever a label.
//
// The label limiter is the name passed to each function. All functions, and the functions
// that they return, are safe for concurrent use. For the list of metrics see docs/metrics.md.
package promlimit

import (
	"context"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/internal/figures"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/internal/outcome"
	"github.com/weir-go/ratelimit/stats"
)

// Metrics are the metrics of a program's limiters. Make one with [New]. The zero Metrics
// cannot be used.
type Metrics struct {
	reg       prometheus.Registerer
	decisions *prometheus.CounterVec
	spent     *prometheus.CounterVec
	degraded  *prometheus.CounterVec
	duration  *prometheus.HistogramVec
	rules     figures.RuleCounts
}

// New registers the metrics. It returns the registerer's error, for example if the metrics are registered already.
func New(reg prometheus.Registerer) (*Metrics, error) {
	if optional.IsNil(reg) {
		return nil, optional.Nil("promlimit: New: reg")
	}
	counter := func(f figures.Figure) *prometheus.CounterVec {
		return prometheus.NewCounterVec(prometheus.CounterOpts{Name: f.Prometheus(), Help: f.Help}, f.By)
	}
	m := &Metrics{
		reg:       reg,
		decisions: counter(figures.Decisions),
		spent:     counter(figures.Spent),
		degraded:  counter(figures.Degraded),
		duration: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name: figures.Duration.Prometheus(), Help: figures.Duration.Help, Buckets: figures.Buckets,
		}, figures.Duration.By),
	}
	all := []prometheus.Collector{m.decisions, m.spent, m.degraded, m.duration, newGroup("", m.rules.Group())}
	for i, c := range all {
		if err := reg.Register(c); err != nil {
			for _, done := range all[:i] { // so that a later New can register them
				reg.Unregister(done)
			}
			return nil, err
		}
	}
	return m, nil
}

func (m *Metrics) mustBeMade() {
	if m == nil || m.reg == nil {
		panic(optional.Zero("promlimit", "Metrics", "New"))
	}
}

// OnDecision returns a function for the option OnDecision in [ratelimit.Options]
// and in other engines' options. It counts decisions, and adds up the spent cost.
func OnDecision[K any](m *Metrics, limiter string) func(ratelimit.Event[K]) {
	m.mustBeMade()
	limiter = valid(limiter)
	var known sync.Map // from the limit's name to *counters, because looking up a label costs more
	degraded := m.degraded.WithLabelValues(limiter)
	return func(e ratelimit.Event[K]) {
		c, ok := known.Load(e.Decision.Limit.Name)
		if !ok {
			c, _ = known.LoadOrStore(e.Decision.Limit.Name, m.counters(limiter, e.Decision.Limit.Name))
		}
		counters := c.(*counters)
		counters.decisions[outcome.Of(e.Decision, e.Err)].Inc()
		if e.Spent {
			counters.spent.Add(float64(e.Cost))
		}
		if e.Decision.Degraded {
			degraded.Inc()
		}
	}
}

// counters are one limit's counters.
type counters struct {
	decisions [outcome.Count]prometheus.Counter
	spent     prometheus.Counter
}

func (m *Metrics) counters(limiter, limit string) *counters {
	c := &counters{spent: m.spent.WithLabelValues(limiter, limit)}
	for o := range outcome.Count {
		c.decisions[o] = m.decisions.WithLabelValues(limiter, limit, outcome.Outcome(o).String())
	}
	return c
}

// OnPolicyDecision returns a function for package policy's option OnDecision. If the policies
// are registered with [Metrics.Register], a rule's series disappear when the rule is no longer
// in force. The function does not keep its argument, so set ReuseRules in the same options.
func (m *Metrics) OnPolicyDecision() func(stats.PolicyDecision) {
	m.mustBeMade()
	return m.rules.Count
}

// Timed returns a limiter that decides as l does, and measures each decision's duration.
// Use it for limiters whose budgets are on a server. It does not measure Wait.
func Timed[K any](m *Metrics, limiter string, l ratelimit.Reserver[K]) ratelimit.Reserver[K] {
	m.mustBeMade()
	if optional.IsNil(l) {
		panic(optional.Nil("promlimit: Timed: l"))
	}
	seconds := m.duration.WithLabelValues(valid(limiter))
	return figures.Timed(l, func(_ context.Context, took time.Duration) { seconds.Observe(took.Seconds()) })
}
