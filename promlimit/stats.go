package promlimit

import (
	"errors"
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/figures"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/stats"
)

// group is a collector of counters and gauges that are read together, when they are collected.
type group struct {
	descs []*prometheus.Desc
	of    figures.Group
}

func (g *group) Describe(ch chan<- *prometheus.Desc) {
	for _, d := range g.descs {
		ch <- d
	}
}

func (g *group) Collect(ch chan<- prometheus.Metric) {
	g.of.Read(func(i int, value float64, labels ...string) {
		kind := prometheus.CounterValue
		if g.of.Figures[i].Gauge {
			kind = prometheus.GaugeValue
		}
		for j := range labels {
			labels[j] = valid(labels[j])
		}
		ch <- prometheus.MustNewConstMetric(g.descs[i], kind, value, labels...)
	})
}

// register registers a group under a limiter's name, none if that is empty.
func (m *Metrics) register(limiter string, of figures.Group) error {
	if err := m.reg.Register(newGroup(limiter, of)); err != nil {
		return fmt.Errorf("promlimit: %s of limiter %q: %w", of.Figures[0].Prometheus(), limiter, err)
	}
	return nil
}

func newGroup(limiter string, of figures.Group) *group {
	labels := prometheus.Labels{}
	if limiter != "" {
		labels["limiter"] = valid(limiter)
	}
	g := &group{of: of}
	for _, f := range of.Figures {
		g.descs = append(g.descs, prometheus.NewDesc(f.Prometheus(), f.Help, f.By, labels))
	}
	return g
}

// Table registers the figures of a limiter's table of keys. It fails with the registerer's error, or if an argument is nil.
func (m *Metrics) Table(limiter string, read func() ratelimit.Stats) error {
	if read == nil {
		return missing("Table", limiter)
	}
	return m.register(limiter, figures.OfTable(read))
}

// Inflight registers an in-flight limiter's figures over all keys. It fails as [Metrics.Table] does.
func (m *Metrics) Inflight(limiter string, read func() inflight.Totals) error {
	if read == nil {
		return missing("Inflight", limiter)
	}
	return m.register(limiter, figures.OfInflight(read))
}

// Failover registers a failover limiter's figures: its breaker's state (0 closed, 1 half open, 2 open), the decisions by the primary and by
// the stand-in, and the reasons for the latter. It fails as [Metrics.Table] does.
func (m *Metrics) Failover(limiter string, b interface{ Stats() failover.Stats }) error {
	if optional.IsNil(b) {
		return missing("Failover", limiter)
	}
	return m.register(limiter, figures.OfFailover(b.Stats))
}

// Lease registers the figures of leases. It fails as [Metrics.Table] does.
func (m *Metrics) Lease(limiter string, read func() lease.Stats) error {
	if read == nil {
		return missing("Lease", limiter)
	}
	return m.register(limiter, figures.OfLease(read))
}

// RegisterPolicies registers the figures of policies, such as the version in force. A program registers one Policies: a
// second is an error. Otherwise it fails as [Metrics.Table] does.
func (m *Metrics) RegisterPolicies(p interface {
	Stats() stats.Policies
	Tables() map[string]ratelimit.Stats
}) error {
	if optional.IsNil(p) {
		return errors.New("promlimit: nil Policies")
	}
	if err := m.register("", figures.OfPolicies(p.Stats)); err != nil {
		return err
	}
	m.rules.Keep(func() []string { return p.Stats().Names })
	return m.register("", figures.OfRuleTables(p.Tables))
}

// valid returns a label's value as Prometheus takes it.
func valid(label string) string { return strings.ToValidUTF8(label, "\uFFFD") }

func missing(what, limiter string) error {
	return fmt.Errorf("promlimit: %s of %q was given nil", what, limiter)
}
