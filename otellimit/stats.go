package otellimit

import (
	"context"
	"errors"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/ratelimit"
	"github.com/weir-go/ratelimit/failover"
	"github.com/weir-go/ratelimit/inflight"
	"github.com/weir-go/ratelimit/internal/figures"
	"github.com/weir-go/ratelimit/internal/optional"
	"github.com/weir-go/ratelimit/lease"
	"github.com/weir-go/ratelimit/stats"
)

// register makes the instruments of a group, under a limiter's name, none if that is empty. A second
// group of the same kind and name would overwrite the first, so it is an error.
func (m *Metrics) register(limiter string, of figures.Group) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := of.Figures[0].Name + "\x00" + limiter
	if m.registered[name] {
		return fmt.Errorf("otellimit: %s of limiter %q is registered already", of.Figures[0].OpenTelemetry(), limiter)
	}
	var common []attribute.KeyValue
	if limiter != "" {
		common = append(common, attribute.String("limiter", limiter))
	}
	all := make([]metric.Observable, len(of.Figures))
	observe := make([]func(metric.Observer, float64, metric.ObserveOption), len(of.Figures))
	for i, f := range of.Figures {
		var err error
		if all[i], observe[i], err = m.observable(f); err != nil {
			return err
		}
	}
	_, err := m.meter.RegisterCallback(func(_ context.Context, o metric.Observer) error {
		of.Read(func(i int, value float64, labels ...string) {
			attributes := common[:len(common):len(common)]
			for j, label := range of.Figures[i].By {
				attributes = append(attributes, attribute.String(label, labels[j]))
			}
			observe[i](o, value, set(attributes...))
		})
		return nil
	}, all...)
	m.registered[name] = err == nil
	return err
}

// observable makes one instrument, and returns a function that observes it.
func (m *Metrics) observable(f figures.Figure) (metric.Observable, func(metric.Observer, float64, metric.ObserveOption), error) {
	if f.Unit == "s" {
		g, err := m.meter.Float64ObservableGauge(f.OpenTelemetry(), metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
		return g, func(o metric.Observer, value float64, of metric.ObserveOption) { o.ObserveFloat64(g, value, of) }, err
	}
	var i metric.Int64Observable
	var err error
	if f.Gauge {
		i, err = m.meter.Int64ObservableGauge(f.OpenTelemetry(), metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
	} else {
		i, err = m.meter.Int64ObservableCounter(f.OpenTelemetry(), metric.WithUnit(f.Unit), metric.WithDescription(f.Help))
	}
	return i, func(o metric.Observer, value float64, of metric.ObserveOption) { o.ObserveInt64(i, int64(value), of) }, err
}

// Table registers the figures of a limiter's table of keys. It fails with the meter's error, if the argument is nil, or if the name is
// taken.
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
		return errors.New("otellimit: nil Policies")
	}
	if err := m.register("", figures.OfPolicies(p.Stats)); err != nil {
		return err
	}
	m.rules.Keep(func() []string { return p.Stats().Names })
	return m.register("", figures.OfRuleTables(p.Tables))
}

func missing(what, limiter string) error {
	return fmt.Errorf("otellimit: %s of %q was given nil", what, limiter)
}
