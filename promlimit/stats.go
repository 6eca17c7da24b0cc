package promlimit

import (
	"fmt"
	"strings"

	"github.com/prometheus/client_golang/prometheus"

	"github.com/weir-go/ratelimit/internal/figures"
)

// group is a collector whose counters and gauges are read together.
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

// register registers a group. The label limiter is left out if its value is "".
func (m *Metrics) register(limiter string, of figures.Group) error {
	if err := m.reg.Register(newGroup(limiter, of)); err != nil {
		return fmt.Errorf("%s of limiter %q: %w", of.Figures[0].Prometheus(), limiter, err)
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

// Register registers a limiter's figures under its name. The source is the limiter or any
// other value with the same method Stats, or Totals for package inflight. The figures are
//
//   - of a [ratelimit.Keyed], its table of keys;
//   - of package failover, the breaker and the decisions;
//   - of package inflight, the calls over all keys;
//   - of package lease, the leases;
//   - of a redislimit.Semaphore, its slots in this process;
//   - of a httplimit.Middleware or Inflight, the requests by outcome, for example "denied";
//   - of an Interceptor of package grpclimit or connectlimit, the calls by outcome.
//
// Requests and calls that Options.Skip exempts are not counted.
//
// Register also registers policies' figures, for example the version
// in force, under the name "". A program registers one Policies.
//
// Register returns the registerer's error. It also returns an error if a figure with
// that name is registered already, or if the source is nil or has another type.
func (m *Metrics) Register(limiter string, source any) error {
	m.mustBeMade()
	if err := figures.Register(limiter, source, &m.rules, m.register); err != nil {
		return fmt.Errorf("promlimit: %w", err)
	}
	return nil
}

// valid replaces bytes outside UTF-8 in a label's value, because Prometheus does not accept them.
func valid(label string) string { return strings.ToValidUTF8(label, "\uFFFD") }
