package otellimit

import (
	"context"
	"fmt"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"

	"github.com/weir-go/ratelimit/internal/figures"
)

// register makes a group's instruments. The attribute limiter is left out if its value is "". A second
// group of the same kind and name would overwrite the first, so register returns an error for it.
func (m *Metrics) register(limiter string, of figures.Group) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	name := of.Figures[0].Name + "\x00" + limiter
	if m.registered[name] {
		return fmt.Errorf("%s of limiter %q is registered already", of.Figures[0].OpenTelemetry(), limiter)
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

// observable makes one instrument, and returns a function that observes its value.
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
// Register returns the meter's error. It also returns an error if a figure with
// that name is registered already, or if the source is nil or has another type.
func (m *Metrics) Register(limiter string, source any) error {
	m.mustBeMade()
	if err := figures.Register(limiter, source, &m.rules, m.register); err != nil {
		return fmt.Errorf("otellimit: %w", err)
	}
	return nil
}
